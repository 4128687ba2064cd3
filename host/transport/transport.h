// Transport: bursts of unreliable packets to and from numbered peers. It knows nothing of the protocol above it.
//
// One thread owns a transport; only wake() may be called from others. There is one virtual call per burst, no allocation
// after creation, and no system call but the transport's own. Whatever it cannot send or receive it drops and counts.
//
//   loop:  receive -> handle -> release -> send; when idle: if (prepare_wait()) block on wait_fd(); finish_wait()
//
// The interface and the idea of one conformance suite over all transports follow Homa's Driver and eRPC's Transport.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "protocols/packet.h"
#include "protocols/status.h"

namespace gatun {

inline constexpr int kBurst = 32;  // packets in one receive or send call; DPDK's usual burst

struct TransportCaps {
  const char* name = "";             // "udp", "shm", ...
  bool reliable = false;             // neither loses nor corrupts: no retransmission, no checksum
  uint32_t payload_bytes_max = 0;    // largest payload (without header) of one packet, from the transport alone
  uint32_t receive_bytes = 0;        // bytes of packets the receiving side can hold unread; 0 = no such limit
};

struct TransportStats {
  uint64_t packets_sent = 0, bytes_sent = 0;          // bytes = header + payload
  uint64_t packets_received = 0, bytes_received = 0;
  uint64_t dropped_runt = 0;       // shorter than a header
  uint64_t dropped_no_buffer = 0;  // received while every buffer was held
  uint64_t dropped_send = 0;       // the OS or the peer's ring had no room
  uint64_t congested = 0;          // received with CE
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual TransportCaps caps() const = 0;

  // Fills out with up to out.size() (at most kBurst) packets and returns how many. Their bytes stay valid until their
  // buffer is released; sources of unknown peers can be adopted until the next receive.
  virtual int receive(std::span<RxPacket> out) = 0;
  virtual void release(std::span<const BufferId> buffers) = 0;

  // Sends the packets in order and returns how many it took; the rest had no room now and may be offered again.
  // A payload may lie anywhere, unless arena() is not empty: then it must lie in an arena of this transport.
  virtual int send(std::span<const TxPacket> packets) = 0;

  // Memory in which this peer can see payloads without a copy; empty where payloads may lie anywhere.
  virtual std::span<std::byte> arena(PeerId) { return {}; }

  // The source of a packet of the latest burst becomes a peer. kNoPeer when the table is full.
  virtual PeerId adopt(const RxPacket& packet) = 0;
  virtual void forget(PeerId peer) = 0;

  // Blocking: prepare_wait() arms a wake-up and returns true if nothing has arrived meanwhile (then poll wait_fd() for
  // readability); finish_wait() disarms. wait_fd() never changes.
  virtual bool prepare_wait() = 0;
  virtual int wait_fd() const = 0;
  virtual void finish_wait() = 0;

  virtual Status health() { return {}; }  // polled off the datapath
  virtual TransportStats stats() const = 0;
};

}  // namespace gatun
