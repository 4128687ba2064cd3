// shm: the transport for workers on the switch's own host. ShmHub is the daemon's side (one per lane, many links), ShmLink
// the worker's (its only peer is 0). shm_port.h has the memory they share, shm_door.h hands it to the worker.
//
//   control thread:  ShmArena::make, ShmPort::make, ShmDoor::offer      worker:  shm_connect, ShmLink::make
//   lane thread:     ShmHub::attach ... receive, send ... detach
//
// A packet is one descriptor of 64 bytes in a ring: the header and where the payload lies. No system call while both sides
// are awake. Payloads in arena() go by reference: the receiver reads them where the sender wrote them, and the protocol's
// two-bank rule says when a place is free again. Other payloads (status, probe) are copied through a few cells.
//
// The peer may write anything into its region at any time: every field is copied before it is checked and checked before it
// is used, and no loop, index or length depends on an unchecked one. A full ring drops at the hub and is counted, so that a
// worker that does not read cannot hold up another; at the link send() takes fewer packets.
//
// One thread owns each object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "host/base/os.h"
#include "host/transport/buffer_pool.h"
#include "host/transport/ring_packet.h"
#include "host/transport/shm_door.h"
#include "host/transport/shm_port.h"
#include "host/transport/transport.h"

namespace gatun {

struct ShmHubOptions {
  uint32_t links_max = 256;
  uint32_t payload_bytes_max = 1 << 20;  // of any link
  uint32_t buffers = 64;               // copied packets (probes) that can be held unreleased
};

class ShmHub final : public Transport {
 public:
  static Result<std::unique_ptr<ShmHub>> make(const ShmHubOptions& options);
  ~ShmHub() override;

  // One system call (epoll_ctl). kNoPeer, and the port destroyed, when links_max are attached or its payload is too large.
  PeerId attach(std::unique_ptr<ShmPort> port);
  // The link is gone at once; the port can be destroyed (unmapped) by another thread. Nothing that received packets refer to
  // may be used afterwards: remove the job's trees first. nullptr if there is no such link.
  std::unique_ptr<ShmPort> detach(PeerId peer);

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override;
  int send(std::span<const TxPacket> packets) override;
  std::span<std::byte> arena(PeerId peer) override;  // the result arena that the peer's group shares
  PeerId adopt(const RxPacket& packet) override { return packet.peer; }
  void forget(PeerId peer) override { detach(peer); }
  bool prepare_wait() override;
  int wait_fd() const override { return epoll_.get(); }
  void finish_wait() override;
  TransportStats stats() const override { return stats_; }

 private:
  ShmHub(const ShmHubOptions& options, Fd epoll, std::unique_ptr<BufferPool> pool);

  ShmHubOptions options_;
  Fd epoll_;
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::unique_ptr<ShmPort>> ports_;  // by PeerId
  std::vector<PeerId> live_;                     // attached, in the order they are served
  std::vector<PeerId> written_;                  // in this send, to be woken at its end
  std::vector<uint8_t> is_written_;              // by PeerId
  size_t turn_ = 0;                              // index into live_ of the link that is served first
  std::unique_ptr<RingHeads> heads_;  // of the latest burst
  TransportStats stats_;
};

class ShmLink final : public Transport {
 public:
  static Result<std::unique_ptr<ShmLink>> make(ShmTicket ticket);

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override;
  int send(std::span<const TxPacket> packets) override;
  std::span<std::byte> arena(PeerId) override { return port_->tx_arena(); }
  PeerId adopt(const RxPacket&) override { return 0; }
  void forget(PeerId) override {}
  bool prepare_wait() override;
  int wait_fd() const override { return port_->doorbell_fd(); }
  void finish_wait() override;
  TransportStats stats() const override { return stats_; }

 private:
  ShmLink(std::unique_ptr<ShmPort> port, std::unique_ptr<BufferPool> pool);

  std::unique_ptr<ShmPort> port_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<RingHeads> heads_;  // of the latest burst
  TransportStats stats_;
};

}  // namespace gatun
