// udp: the transport that works everywhere. UdpHub is the switch's side (one socket, many peers, known by source address),
// UdpLink the worker's (a connected socket whose only peer is 0).
//
// Packets go out by sendmmsg, equal ones to the same peer merged by UDP GSO, headers and payloads gathered from where they
// lie; they come in by recvmmsg into pooled buffers, several to a buffer by UDP GRO. What the kernel or an interface refuses
// is switched off and done without. All packets are sent as ECN-capable; a CE mark comes out in RxPacket::congested.
//
// One thread owns each object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "host/base/os.h"
#include "host/transport/transport.h"
#include "host/transport/udp_peers.h"
#include "host/transport/udp_receive.h"
#include "host/transport/udp_send.h"

namespace gatun {

struct UdpOptions {
  uint32_t buffers = 1024;           // received packets that can be held unreleased (64 KiB each, touched as they are used)
  uint32_t socket_bytes = 16 << 20;  // wanted size of the socket's buffers; caps().receive_bytes says what it came to
  uint32_t peers_max = 1024;         // UdpHub
  bool gso = true;                   // use UDP GSO and GRO if they are there
  bool gro = true;
  int busy_poll_us = 0;              // SO_BUSY_POLL
};

class UdpHub final : public Transport {
 public:
  // Port 0 takes any; local() says which. Errors name the address and who may be using it.
  static Result<std::unique_ptr<UdpHub>> make(const Endpoint& local, const UdpOptions& options);

  Endpoint local() const;

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override { return receiver_.receive(out); }
  void release(std::span<const BufferId> buffers) override { receiver_.release(buffers); }
  int send(std::span<const TxPacket> packets) override { return sender_.send(packets); }
  PeerId adopt(const RxPacket& packet) override;
  void forget(PeerId peer) override { peers_.remove(peer); }
  bool prepare_wait() override { return receiver_.drained(); }
  int wait_fd() const override { return fd_.get(); }
  void finish_wait() override {}
  Status health() override;
  TransportStats stats() const override;

 private:
  UdpHub(Fd fd, int family, uint32_t receive_bytes, uint32_t peers_max, std::unique_ptr<BufferPool> pool, bool gso);

  Fd fd_;
  int family_;
  uint32_t receive_bytes_;
  UdpPeers peers_;
  UdpReceiver receiver_;
  UdpSender sender_;
};

class UdpLink final : public Transport {
 public:
  // Nothing is sent: a peer that does not listen shows in health() once packets were.
  static Result<std::unique_ptr<UdpLink>> make(const Endpoint& peer, const UdpOptions& options);

  Endpoint local() const;

  TransportCaps caps() const override;  // payload_bytes_max follows the path's MTU as the kernel knows it
  int receive(std::span<RxPacket> out) override { return receiver_.receive(out); }
  void release(std::span<const BufferId> buffers) override { receiver_.release(buffers); }
  int send(std::span<const TxPacket> packets) override { return sender_.send(packets); }
  PeerId adopt(const RxPacket&) override { return 0; }
  void forget(PeerId) override {}
  bool prepare_wait() override { return receiver_.drained(); }
  int wait_fd() const override { return fd_.get(); }
  void finish_wait() override {}
  Status health() override;
  TransportStats stats() const override;

 private:
  UdpLink(Fd fd, const Endpoint& peer, uint32_t receive_bytes, std::unique_ptr<BufferPool> pool, bool gso);

  Fd fd_;
  Endpoint peer_;
  uint32_t receive_bytes_;
  UdpReceiver receiver_;
  UdpSender sender_;
  uint64_t refused_reported_ = 0;
};

}  // namespace gatun
