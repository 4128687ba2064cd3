#include "host/transport/udp.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "host/transport/udp_socket.h"

namespace gatun {

namespace {

// What a hub and a link have in common before they exist.
struct Parts {
  Fd fd;
  std::unique_ptr<BufferPool> pool;
  uint32_t receive_bytes = 0;
  bool gso = false;
};

Result<Parts> make_parts(int family, const UdpOptions& options) {
  Result<Fd> fd = make_udp_socket(family, {.socket_bytes = options.socket_bytes, .busy_poll_us = options.busy_poll_us});
  if (!fd.ok()) return fd.status();
  auto pool = BufferPool::make(options.buffers + kBurst, kUdpBufferBytes);  // a burst of them always stands ready
  if (!pool.ok()) return pool.status();
  if (options.gro) enable_gro(fd->get());
  const uint32_t receive_bytes = receive_buffer_bytes(fd->get());
  const bool gso = options.gso && has_gso(fd->get());
  return Parts{std::move(fd.value()), std::move(pool.value()), receive_bytes, gso};
}

// intact: packets do not leave this host's memory.
TransportCaps make_caps(int fd, int family, bool connected, bool intact, uint32_t receive_bytes, uint32_t buffers) {
  return {.name = "udp",
          .reliable = false,
          .intact = intact,
          .payload_bytes_max = udp_payload_bytes_max(fd, family, connected),
          .receive_bytes = receive_bytes,
          .buffers = buffers};
}

TransportStats make_stats(const UdpReceiver& receiver, const UdpSender& sender) {
  TransportStats stats;
  receiver.add_stats(&stats);
  sender.add_stats(&stats);
  stats.refused = receiver.refused() + sender.refused();
  return stats;
}

Status send_health(int error, const std::string& from) {
  if (error == 0) return {};
  if (error == EMSGSIZE) {
    return Status(Code::kSystem, "packets from UDP " + from + " are larger than the MTU of their path; lower the payload");
  }
  return Status(Code::kSystem, "the system refuses packets from UDP " + from + ": " + std::strerror(error) +
                                   (error == EPERM ? "; a firewall rule may forbid them" : ""));
}

}  // namespace

Result<std::unique_ptr<UdpHub>> UdpHub::make(const Endpoint& local, const UdpOptions& options) {
  Result<Parts> parts = make_parts(local.family(), options);
  if (!parts.ok()) return parts.status();
  if (Status status = bind_udp(parts->fd.get(), local); !status.ok()) return status;
  return std::unique_ptr<UdpHub>(new UdpHub(std::move(parts->fd), local.family(), parts->receive_bytes, options.peers_max,
                                            std::move(parts->pool), parts->gso));
}

UdpHub::UdpHub(Fd fd, int family, uint32_t receive_bytes, uint32_t peers_max, std::unique_ptr<BufferPool> pool, bool gso)
    : fd_(std::move(fd)),
      family_(family),
      receive_bytes_(receive_bytes),
      peers_(peers_max),
      receiver_(fd_.get(), std::move(pool), &peers_),
      sender_(fd_.get(), &peers_, gso) {}

Endpoint UdpHub::local() const { return local_address(fd_.get()); }

TransportCaps UdpHub::caps() const {
  return make_caps(fd_.get(), family_, false, false, receive_bytes_, receiver_.buffers());
}

PeerId UdpHub::adopt(const RxPacket& packet) { return peers_.add(receiver_.source(packet), receiver_.source_size(packet)); }

Status UdpHub::health() { return send_health(sender_.take_error(), local().text()); }

TransportStats UdpHub::stats() const { return make_stats(receiver_, sender_); }

Result<std::unique_ptr<UdpLink>> UdpLink::make(const Endpoint& peer, const UdpOptions& options) {
  Result<Parts> parts = make_parts(peer.family(), options);
  if (!parts.ok()) return parts.status();
  if (Status status = connect_udp(parts->fd.get(), peer); !status.ok()) return status;
  return std::unique_ptr<UdpLink>(
      new UdpLink(std::move(parts->fd), peer, parts->receive_bytes, std::move(parts->pool), parts->gso));
}

UdpLink::UdpLink(Fd fd, const Endpoint& peer, uint32_t receive_bytes, std::unique_ptr<BufferPool> pool, bool gso)
    : fd_(std::move(fd)),
      peer_(peer),
      receive_bytes_(receive_bytes),
      receiver_(fd_.get(), std::move(pool), nullptr),
      sender_(fd_.get(), nullptr, gso) {}

Endpoint UdpLink::local() const { return local_address(fd_.get()); }

TransportCaps UdpLink::caps() const {
  return make_caps(fd_.get(), peer_.family(), true, peer_.loopback(), receive_bytes_, receiver_.buffers());
}

Status UdpLink::health() {
  const uint64_t refused = receiver_.refused() + sender_.refused();
  if (std::exchange(refused_reported_, refused) != refused) {
    return Status(Code::kSystem, "nobody listens on UDP " + peer_.text() + "; is gatund running there?");
  }
  return send_health(sender_.take_error(), local().text());
}

TransportStats UdpLink::stats() const { return make_stats(receiver_, sender_); }

}  // namespace gatun
