#include "host/transport/dpdk_transport.h"

#include <netinet/in.h>
#include <rte_mbuf.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace gatun {
namespace {

socklen_t to_socket_address(const FrameAddress& at, sockaddr_storage* out) {
  if (at.ip.six) {
    auto& in = reinterpret_cast<sockaddr_in6&>(*out);
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(at.port);
    std::memcpy(&in.sin6_addr, at.ip.bytes.data(), 16);
    return sizeof in;
  }
  auto& in = reinterpret_cast<sockaddr_in&>(*out);
  in.sin_family = AF_INET;
  in.sin_port = htons(at.port);
  std::memcpy(&in.sin_addr, at.ip.bytes.data(), 4);
  return sizeof in;
}

}  // namespace

Result<std::unique_ptr<DpdkTransport>> DpdkTransport::make(std::shared_ptr<DpdkDeviceShared> device, uint16_t port,
                                                           uint32_t buffers, uint32_t peers_max, bool strict) {
  Result<std::unique_ptr<DpdkInbox>> inbox = DpdkInbox::make(device->facts().sockets);
  if (!inbox.ok()) return inbox.status();
  Result<std::unique_ptr<DpdkSender>> sender = device->take_sender();
  if (!sender.ok()) return sender.status();
  std::unique_ptr<DpdkTransport> transport(
      new DpdkTransport(device, std::move(inbox.value()), std::move(sender.value()), buffers, peers_max, strict));
  Result<DpdkDeviceShared::Seat> seat = device->attach(port, transport->inbox_.get());
  if (!seat.ok()) return seat.status();
  transport->seat_ = seat.value();
  return transport;
}

DpdkTransport::DpdkTransport(std::shared_ptr<DpdkDeviceShared> device, std::unique_ptr<DpdkInbox> inbox,
                             std::unique_ptr<DpdkSender> sender, uint32_t buffers, uint32_t peers_max, bool strict)
    : device_(std::move(device)),
      inbox_(std::move(inbox)),
      sender_(std::move(sender)),
      strict_(strict),
      peers_(peers_max),
      headers_(peers_max),
      held_(buffers),
      free_(buffers) {
  for (uint32_t i = 0; i < buffers; ++i) free_[i] = buffers - 1 - i;
}

DpdkTransport::~DpdkTransport() {
  if (seat_.port != 0) device_->detach(seat_, inbox_.get());
  for (rte_mbuf* mbuf : held_) rte_pktmbuf_free(mbuf);
  device_->give_sender(std::move(sender_));
}

void DpdkTransport::set_peer(const Endpoint& peer, const FrameAddress& at) {
  const PeerId id = peers_.add(peer.storage, peer.size);
  GATUN_CHECK(id == 0);
  headers_[id] = header_to(at);
}

FrameHeader DpdkTransport::header_to(const FrameAddress& to) const {
  const DpdkSpec::Address* own = device_->spec().address(to.ip.six);
  GATUN_CHECK(own != nullptr);  // what has come was sent to it
  return FrameHeader({device_->mac(), own->ip, seat_.port}, to);
}

TransportCaps DpdkTransport::caps() const {
  return {.name = "dpdk",
          .reliable = false,
          .intact = false,
          .payload_bytes_max = device_->payload_bytes_max(),
          .receive_bytes = device_->receive_bytes(),
          .buffers = static_cast<uint32_t>(held_.size()),
          .cores = device_->facts().cores};
}

int DpdkTransport::receive(std::span<RxPacket> out) {
  out = out.first(std::min<size_t>(out.size(), kBurst));
  // Not when a burst might overflow the inbox: what is left in the device is not lost.
  if (!out.empty() && inbox_->room() >= kBurst) device_->poll();
  int count = 0;
  DpdkInbox::Arrival arrival;
  while (count < static_cast<int>(out.size()) && inbox_->take(&arrival)) {
    const auto index = static_cast<uint32_t>(count);
    if (accept(arrival, index, &out[index])) {
      ++count;
    } else {
      rte_pktmbuf_free(arrival.mbuf);
    }
  }
  return count;
}

bool DpdkTransport::accept(const DpdkInbox::Arrival& arrival, uint32_t index, RxPacket* out) {
  const Frame& frame = arrival.frame;
  if (frame.payload_bytes < kHeaderBytes) {
    ++stats_.dropped_runt;
    return false;
  }
  const auto payload_bytes = static_cast<uint32_t>(frame.payload_bytes - kHeaderBytes);
  if (frame.payload_bytes + frame_header_bytes(frame.source_ip.six) - kEthernetBytes > device_->facts().mtu) {
    device_->count_cut();
    ++stats_.dropped_invalid;
    return false;
  }
  Source& source = sources_[index];
  source.at = {frame.source_mac, frame.source_ip, frame.source_port};
  source.size = to_socket_address(source.at, &source.address);
  const PeerId peer = peers_.find(source.address);
  if (peer == kNoPeer && strict_) {
    ++stats_.dropped_invalid;
    return false;
  }
  if (free_.empty()) {
    ++stats_.dropped_no_buffer;
    return false;
  }
  const BufferId buffer = free_.back();
  free_.pop_back();
  held_[buffer] = arrival.mbuf;
  *out = {.head = frame.payload,
          .payload = frame.payload + kHeaderBytes,
          .payload_bytes = payload_bytes,
          .peer = peer,
          .buffer = buffer,
          .source = index,
          .congested = frame.congested};
  ++stats_.packets_received;
  stats_.bytes_received += frame.payload_bytes;
  stats_.congested += frame.congested;
  return true;
}

void DpdkTransport::release(std::span<const BufferId> buffers) {
  std::array<rte_mbuf*, kBurst> mbufs;  // together: each time the pool is touched costs as much as a small packet
  uint32_t count = 0;
  for (const BufferId buffer : buffers) {
    if (buffer == kNoBuffer) continue;
    GATUN_CHECK(buffer < held_.size() && held_[buffer] != nullptr);
    mbufs[count++] = std::exchange(held_[buffer], nullptr);
    free_.push_back(buffer);
    if (count == kBurst) rte_pktmbuf_free_bulk(mbufs.data(), std::exchange(count, 0));
  }
  rte_pktmbuf_free_bulk(mbufs.data(), count);
}

bool DpdkTransport::sendable(const TxPacket& packet) {
  if (!peers_.known(packet.peer)) {
    ++stats_.dropped_send;
    return false;
  }
  const uint64_t bytes = uint64_t{packet.payload_bytes} + kHeaderBytes + headers_[packet.peer].size() - kEthernetBytes;
  if (bytes <= device_->facts().mtu) return true;
  ++stats_.dropped_send;
  ++stats_.dropped_oversize;
  return false;
}

int DpdkTransport::send(std::span<const TxPacket> packets) {
  size_t taken = 0;
  while (taken < packets.size()) {
    std::array<rte_mbuf*, kBurst> mbufs;
    std::array<size_t, kBurst> places;  // of their packets
    uint32_t count = 0;
    size_t next = taken;
    sender_->begin();
    for (; next < packets.size() && count < kBurst; ++next) {
      const TxPacket& packet = packets[next];
      if (!sendable(packet)) continue;
      const bool again = next + 1 < packets.size() && packets[next + 1].payload == packet.payload &&
                         packets[next + 1].payload_bytes == packet.payload_bytes;
      rte_mbuf* mbuf = sender_->build(packet, headers_[packet.peer], again);
      if (mbuf == nullptr) break;
      mbufs[count] = mbuf;
      places[count++] = next;
    }
    const bool memory_ended = next < packets.size() && count < kBurst;
    const uint32_t sent = count == 0 ? 0 : device_->send(seat_.queue, mbufs.data(), count);
    for (uint32_t i = 0; i < sent; ++i) stats_.bytes_sent += kHeaderBytes + packets[places[i]].payload_bytes;
    stats_.packets_sent += sent;
    for (uint32_t i = sent; i < count; ++i) rte_pktmbuf_free(mbufs[i]);
    if (sent < count) return static_cast<int>(places[sent]);
    taken = next;
    if (memory_ended) break;
  }
  return static_cast<int>(taken);
}

PeerId DpdkTransport::adopt(const RxPacket& packet) {
  if (strict_) return 0;
  const Source& source = sources_[packet.source];
  const PeerId peer = peers_.add(source.address, source.size);
  if (peer != kNoPeer) headers_[peer] = header_to(source.at);
  return peer;
}

void DpdkTransport::forget(PeerId peer) {
  if (!strict_) peers_.remove(peer);
}

bool DpdkTransport::prepare_wait() {
  inbox_->announce_sleep();
  if (!inbox_->empty()) return false;
  device_->poll();
  if (!inbox_->empty()) return false;
  inbox_->arm();
  return true;
}

TransportStats DpdkTransport::stats() const {
  TransportStats stats = stats_;
  stats.dropped_no_buffer += inbox_->overflows();
  return stats;
}

}  // namespace gatun
