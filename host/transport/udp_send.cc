#include "host/transport/udp_send.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace gatun {

namespace {
constexpr int kWaiting = -1;  // message_of_: still to be planned
constexpr int kSettled = -2;  // sent, or dropped for good
constexpr int kOrderedBlocks = 64;
}  // namespace

UdpSender::UdpSender(int fd, const UdpPeers* peers, bool gso) : fd_(fd), peers_(peers), gso_(gso) {}

int UdpSender::send(std::span<const TxPacket> packets) {
  int taken = 0;
  while (taken < static_cast<int>(packets.size())) {
    const auto block = packets.subspan(taken, std::min<size_t>(kBlock, packets.size() - taken));
    const int settled = send_block(block);
    taken += settled;
    if (settled < static_cast<int>(block.size())) break;
  }
  return taken;
}

int UdpSender::take_error() { return std::exchange(error_, 0); }

// Returns how many packets at the front of the block are settled. When the socket is full, packets behind them may have gone
// out too and go out twice if offered again; so while it is lately full, blocks are not regrouped and that cannot happen.
int UdpSender::send_block(std::span<const TxPacket> packets) {
  const int size = static_cast<int>(packets.size());
  std::fill_n(message_of_.begin(), size, kWaiting);
  Outcome outcome;
  do {
    const int count = plan(packets);
    gather(packets, count);
    outcome = transmit(count);
    if (outcome == Outcome::kDone) break;
    mark_settled(size);
  } while (outcome == Outcome::kAgain);
  if (outcome == Outcome::kDone) {
    if (ordered_blocks_ > 0) --ordered_blocks_;
    return size;
  }
  ordered_blocks_ = kOrderedBlocks;
  int front = 0;
  while (front < size && message_of_[front] == kSettled) ++front;
  return front;
}

// Assigns each waiting packet to a message and returns the number of messages.
int UdpSender::plan(std::span<const TxPacket> packets) {
  int count = 0;
  for (size_t i = 0; i < packets.size(); ++i) {
    if (message_of_[i] == kSettled) continue;
    const TxPacket& packet = packets[i];
    if (peers_ != nullptr && !peers_->known(packet.peer)) {
      message_of_[i] = kSettled;
      ++dropped_;
      continue;
    }
    const uint32_t bytes = static_cast<uint32_t>(kHeaderBytes) + packet.payload_bytes;
    int index = gso_ ? message_for(packet, bytes, count) : -1;
    if (index < 0) {
      index = count++;
      plan_[index] = {.peer = packet.peer, .segment_bytes = bytes};
    }
    Message& message = plan_[index];
    message.bytes += bytes;
    message.packets += 1;
    message.vectors += packet.payload_bytes > 0 ? 2 : 1;
    message.closed = bytes < message.segment_bytes;
    message_of_[i] = index;
  }
  return count;
}

// The latest planned message to the packet's peer, if the packet can still join it.
int UdpSender::message_for(const TxPacket& packet, uint32_t bytes, int count) const {
  const int lowest = ordered_blocks_ > 0 ? std::max(0, count - 1) : 0;
  for (int index = count - 1; index >= lowest; --index) {
    const Message& message = plan_[index];
    if (message.peer != packet.peer && peers_ != nullptr) continue;
    const bool fits = !message.closed && bytes <= message.segment_bytes && message.packets < kSegments &&
                      message.bytes + bytes <= kGsoBytes;
    return fits ? index : -1;
  }
  return -1;
}

// Lays the vectors of each message side by side and fills them in packet order.
void UdpSender::gather(std::span<const TxPacket> packets, int count) {
  uint32_t next = 0;
  for (int index = 0; index < count; ++index) {
    plan_[index].first_vector = next;
    next += plan_[index].vectors;
    describe(index);
    plan_[index].vectors = 0;
  }
  for (size_t i = 0; i < packets.size(); ++i) {
    if (message_of_[i] < 0) continue;
    Message& message = plan_[message_of_[i]];
    iovec* vector = &vectors_[message.first_vector + message.vectors];
    vector[0] = {const_cast<std::byte*>(packets[i].head), kHeaderBytes};
    ++message.vectors;
    if (packets[i].payload_bytes == 0) continue;
    vector[1] = {const_cast<std::byte*>(packets[i].payload), packets[i].payload_bytes};
    ++message.vectors;
  }
}

void UdpSender::describe(int index) {
  const Message& message = plan_[index];
  msghdr& header = messages_[index].msg_hdr;
  header = {};
  if (peers_ != nullptr) {
    header.msg_name = const_cast<sockaddr_storage*>(&peers_->address(message.peer));
    header.msg_namelen = peers_->address_size(message.peer);
  }
  header.msg_iov = &vectors_[message.first_vector];
  header.msg_iovlen = message.vectors;
  if (message.packets < 2) return;
  header.msg_control = &controls_[index];
  header.msg_controllen = sizeof(Control);
  cmsghdr* control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = IPPROTO_UDP;
  control->cmsg_type = UDP_SEGMENT;
  control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const uint16_t segment_bytes = static_cast<uint16_t>(message.segment_bytes);
  std::memcpy(CMSG_DATA(control), &segment_bytes, sizeof(segment_bytes));
}

UdpSender::Outcome UdpSender::transmit(int count) {
  int next = 0;
  while (next < count) {
    const int sent = ::sendmmsg(fd_, &messages_[next], static_cast<unsigned>(count - next), MSG_DONTWAIT | MSG_NOSIGNAL);
    for (int i = 0; i < sent; ++i) settle(next++, true);
    if (sent > 0) continue;
    const int error = errno;
    const Outcome outcome = on_error(error, next);
    if (outcome != Outcome::kDone) return outcome;
    ++next;
  }
  return Outcome::kDone;
}

// kDone: the message cannot be sent and is dropped.
UdpSender::Outcome UdpSender::on_error(int error, int index) {
  if (error == EAGAIN || error == EWOULDBLOCK) return Outcome::kFull;
  if (plan_[index].packets > 1 && (error == EIO || error == EINVAL || error == EOPNOTSUPP)) {
    gso_ = false;
    return Outcome::kAgain;
  }
  if (error == EMSGSIZE) oversize_ += plan_[index].packets;
  if (error == ECONNREFUSED) {  // an ICMP answer to an earlier packet, which this call has cleared
    ++refused_;
  } else {
    error_ = error;
  }
  settle(index, false);
  return Outcome::kDone;
}

void UdpSender::settle(int index, bool sent) {
  Message& message = plan_[index];
  message.settled = true;
  if (sent) {
    packets_ += message.packets;
    bytes_ += message.bytes;
  } else {
    dropped_ += message.packets;
  }
}

// Marks the packets of settled messages, so that the next plan leaves them out.
void UdpSender::mark_settled(int packets) {
  for (int i = 0; i < packets; ++i) {
    if (message_of_[i] >= 0) message_of_[i] = plan_[message_of_[i]].settled ? kSettled : kWaiting;
  }
}

void UdpSender::add_stats(TransportStats* stats) const {
  stats->packets_sent += packets_;
  stats->bytes_sent += bytes_;
  stats->dropped_send += dropped_;
  stats->dropped_oversize += oversize_;
}

}  // namespace gatun
