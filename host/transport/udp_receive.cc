#include "host/transport/udp_receive.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/transport/udp_socket.h"
#include "protocols/wire.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace gatun {

namespace {

constexpr uint8_t kEcnMask = 3, kCongestionExperienced = 3;

// What the kernel says beside a datagram: its ECN mark and, when it joined several, the size of each.
struct Ancillary {
  bool congested = false;
  uint32_t segment_bytes = 0;
};

Ancillary read_ancillary(msghdr* message) {
  Ancillary found;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    int value = 0;
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      found.congested = (*reinterpret_cast<const uint8_t*>(CMSG_DATA(c)) & kEcnMask) == kCongestionExperienced;
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      std::memcpy(&value, CMSG_DATA(c), sizeof(value));
      found.congested = (value & kEcnMask) == kCongestionExperienced;
    } else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      std::memcpy(&value, CMSG_DATA(c), sizeof(value));
      found.segment_bytes = value > 0 ? static_cast<uint32_t>(value) : 0;
    }
  }
  return found;
}

// Such a packet has not left this host's memory: from outside the kernel lets none in with this source. So it may come
// without a checksum.
bool from_loopback(const sockaddr_storage& source) {
  if (source.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(source).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return source.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(source).sin6_addr);
}

}  // namespace

UdpReceiver::UdpReceiver(int fd, std::unique_ptr<BufferPool> pool, const UdpPeers* peers)
    : fd_(fd), pool_(std::move(pool)), peers_(peers) {
  for (int i = 0; i < kBurst; ++i) {
    msghdr& header = messages_[i].msg_hdr;
    header.msg_name = &sources_[i];
    header.msg_iov = &vectors_[i];
    header.msg_iovlen = 1;
    header.msg_control = &controls_[i];
    header.msg_namelen = sizeof(sockaddr_storage);
    header.msg_controllen = sizeof(Control);
    posted_[i] = kNoBuffer;
  }
  replenish();
}

int UdpReceiver::receive(std::span<RxPacket> out) {
  out = out.first(std::min<size_t>(out.size(), kBurst));
  if (next_ == filled_ && !fill(static_cast<uint32_t>(out.size()))) return 0;
  int count = 0;
  while (count < static_cast<int>(out.size()) && next_ < filled_) {
    if (!opened_ && !open_message()) continue;
    count += cut(out.subspan(count));
  }
  return count;
}

void UdpReceiver::release(std::span<const BufferId> buffers) {
  for (const BufferId buffer : buffers) {
    if (buffer != kNoBuffer) pool_->release(buffer);
  }
}

void UdpReceiver::post(uint32_t index) {
  vectors_[index] = {pool_->data(posted_[index]), kUdpBufferBytes};
  msghdr& header = messages_[index].msg_hdr;
  header.msg_namelen = sizeof(sockaddr_storage);
  header.msg_controllen = sizeof(Control);
}

// Gives the messages that the last recvmmsg used new buffers; when the pool has none, the unused ones move to the front.
void UdpReceiver::replenish() {
  uint32_t index = 0;
  for (; index < kBurst; ++index) {
    if (posted_[index] != kNoBuffer) continue;
    posted_[index] = pool_->take();
    if (posted_[index] == kNoBuffer) {
      uint32_t last = kBurst;
      while (last > index + 1 && posted_[last - 1] == kNoBuffer) --last;
      if (last == index + 1) break;
      std::swap(posted_[index], posted_[last - 1]);
    }
    post(index);
  }
  posted_count_ = index;
  filled_ = next_ = 0;
}

// One recvmmsg for up to that many datagrams; false if none came.
bool UdpReceiver::fill(uint32_t burst) {
  if (filled_ > 0 || posted_count_ < kBurst) replenish();
  if (posted_count_ == 0) {
    discard();
    return false;
  }
  burst = std::min(burst, posted_count_);
  const int count = ::recvmmsg(fd_, messages_.data(), burst, MSG_DONTWAIT, nullptr);
  if (count < 0) {
    on_error(errno);
    return false;
  }
  drained_ = static_cast<uint32_t>(count) < burst;
  filled_ = static_cast<uint32_t>(count);
  return count > 0;
}

// Every buffer is held. What waits in the kernel would be repeated anyway before a buffer comes free, and would only fill
// the socket's memory till then.
void UdpReceiver::discard() {
  for (int i = 0; i < kBurst; ++i) {
    vectors_[i].iov_len = 0;
    messages_[i].msg_hdr.msg_namelen = 0;
    messages_[i].msg_hdr.msg_controllen = sizeof(Control);
  }
  const int count = ::recvmmsg(fd_, messages_.data(), kBurst, MSG_DONTWAIT | MSG_TRUNC, nullptr);
  if (count < 0) return on_error(errno);
  drained_ = count < kBurst;
  for (int i = 0; i < count; ++i) {
    const uint32_t segment = read_ancillary(&messages_[i].msg_hdr).segment_bytes;
    no_buffer_ += segment == 0 ? 1 : (messages_[i].msg_len + segment - 1) / segment;
  }
}

void UdpReceiver::on_error(int error) {
  drained_ = error == EAGAIN || error == EWOULDBLOCK;
  if (error == ECONNREFUSED) ++refused_;  // reading it cleared it
}

// Starts handing out message next_. A message that holds no packet at all is done with here.
bool UdpReceiver::open_message() {
  mmsghdr& message = messages_[next_];
  const Ancillary ancillary = read_ancillary(&message.msg_hdr);
  const uint32_t bytes = std::min(message.msg_len, kUdpBufferBytes);
  const uint32_t step = ancillary.segment_bytes == 0 ? bytes : ancillary.segment_bytes;
  const bool runt = step < kHeaderBytes;
  uint32_t packets = runt ? 0 : bytes / step;
  const uint32_t tail = runt ? 0 : bytes % step;
  packets += tail >= kHeaderBytes;
  runts_ += runt ? std::max(1u, step == 0 ? 1 : bytes / step) : (tail > 0 && tail < kHeaderBytes);
  if (packets == 0) {
    pool_->give(posted_[next_]);
    posted_[next_++] = kNoBuffer;
    return false;
  }
  pool_->set_references(posted_[next_], packets);
  segments_ = {step, 0, bytes - (tail < kHeaderBytes ? tail : 0), peers_ ? peers_->find(sources_[next_]) : 0,
               ancillary.congested, from_loopback(sources_[next_])};
  opened_ = true;
  return true;
}

int UdpReceiver::cut(std::span<RxPacket> out) {
  const BufferId buffer = posted_[next_];
  const std::byte* data = pool_->data(buffer);
  size_t count = 0;
  while (count < out.size() && segments_.offset < segments_.end) {
    const uint32_t bytes = std::min(segments_.bytes, segments_.end - segments_.offset);
    const std::byte* head = data + segments_.offset;
    out[count++] = {.head = head, .payload = head + kHeaderBytes, .payload_bytes = bytes - uint32_t{kHeaderBytes},
                    .peer = segments_.peer, .buffer = buffer, .source = next_, .congested = segments_.congested,
                    .checksummed = !segments_.intact || has_checksum(head)};
    bytes_ += bytes;
    segments_.offset += bytes;
  }
  packets_ += count;
  congested_ += segments_.congested ? count : 0;
  if (segments_.offset == segments_.end) {
    posted_[next_++] = kNoBuffer;
    opened_ = false;
  }
  return static_cast<int>(count);
}

void UdpReceiver::add_stats(TransportStats* stats) const {
  stats->packets_received += packets_;
  stats->bytes_received += bytes_;
  stats->dropped_runt += runts_;
  stats->dropped_no_buffer += no_buffer_;
  stats->congested += congested_;
}

}  // namespace gatun
