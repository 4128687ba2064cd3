// Transport: bursts of unreliable packets to and from numbered peers. It knows nothing of the protocol above it.
//
// One thread at a time calls a transport. There is one virtual call per burst, no allocation after creation, and no system
// call but the transport's own. Whatever it cannot send or receive it drops and counts.
//
//   loop:  receive -> handle -> release -> send; when idle: if (prepare_wait()) block on wait_fd(); finish_wait()
//
// The interface and the idea of one conformance suite over all transports follow Homa's Driver and eRPC's Transport.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocols/packet.h"
#include "protocols/status.h"

namespace gatun {

inline constexpr int kBurst = 32;  // packets in one receive or send call; DPDK's usual burst

struct TransportCaps {
  const char* name = "";             // "udp", "shm", ...
  bool reliable = false;             // loses nothing: no retransmission
  bool intact = false;               // cannot corrupt: no checksum
  uint32_t payload_bytes_max = 0;    // largest payload (without header) of one packet, from the transport alone
  uint32_t receive_bytes = 0;        // bytes of packets the receiving side can hold unread; 0 = no such limit
  uint32_t buffers = 0;              // packets that can be held unreleased before more are dropped; 0 = no such limit
  std::vector<int> cores = {};       // near its device (placement.h); empty = anywhere
  bool lends = false;                // lend() spares copies
};

struct TransportStats {
  uint64_t packets_sent = 0, bytes_sent = 0;          // bytes = header + payload
  uint64_t packets_received = 0, bytes_received = 0;
  uint64_t dropped_runt = 0;       // shorter than a header
  uint64_t dropped_no_buffer = 0;  // received while every buffer was held
  uint64_t dropped_send = 0;       // the OS refused it, the peer is unknown, or the peer's ring had no room
  uint64_t dropped_oversize = 0;   // of those, larger than the path's MTU or the agreed payload
  uint64_t dropped_invalid = 0;    // shm: a descriptor that points outside the memory shared with its peer
  uint64_t congested = 0;          // received with CE
  uint64_t refused = 0;            // ICMP errors: nobody listens at the peer's port

  TransportStats& operator+=(const TransportStats& other) {
    packets_sent += other.packets_sent;
    bytes_sent += other.bytes_sent;
    packets_received += other.packets_received;
    bytes_received += other.bytes_received;
    dropped_runt += other.dropped_runt;
    dropped_no_buffer += other.dropped_no_buffer;
    dropped_send += other.dropped_send;
    dropped_oversize += other.dropped_oversize;
    dropped_invalid += other.dropped_invalid;
    congested += other.congested;
    refused += other.refused;
    return *this;
  }
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual TransportCaps caps() const = 0;

  // Fills out with up to out.size() (at most kBurst) packets and returns how many. Their bytes stay valid until their
  // buffer is released. With kNoBuffer (shm) there is nothing to release: the head is valid until the next receive, and the
  // payload, which lies in the sender's arena, until the protocol lets the sender reuse its place. Sources of unknown
  // peers can be adopted until the next receive.
  virtual int receive(std::span<RxPacket> out) = 0;
  virtual void release(std::span<const BufferId> buffers) = 0;

  // Returns how many packets from the front it took; the rest had no room now and may be offered again. Packets to one
  // peer leave in order. A payload may lie anywhere and is free again on return, unless it lies in arena(): that is passed
  // by reference. A packet that cannot be sent at all (unknown peer, too large, a peer that does not read) counts as taken.
  virtual int send(std::span<const TxPacket> packets) = 0;

  // Memory in which this peer sees payloads without a copy; empty where every payload is copied or gathered anyway.
  virtual std::span<std::byte> arena(PeerId) { return {}; }

  // With caps().lends: payloads in this memory (TxPacket::seen_at) are sent from where they are, and read until take_back()
  // returns: whatever was sent, the memory may be freed then. A packet that still names it is sent by a copy. Both are for
  // moments of calm: they may make system calls, allocate, and wait for half a second.
  virtual Status lend(std::span<std::byte>) { return {}; }
  virtual Status take_back(std::span<std::byte>) { return {}; }
  // Of all memory, for good: nothing is sent any more.
  virtual void take_all_back() {}

  // The source of a packet of the latest burst becomes a peer, or is one already. kNoPeer when the table is full. forget()
  // takes any number, also twice.
  virtual PeerId adopt(const RxPacket& packet) = 0;
  virtual void forget(PeerId peer) = 0;

  // Blocking: prepare_wait() arms a wake-up and returns true if nothing has arrived meanwhile; then wait_fd() may be waited
  // for, edge-triggered (waiter.h does it). finish_wait() disarms, also after a false. wait_fd() never changes.
  virtual bool prepare_wait() = 0;
  virtual int wait_fd() const = 0;
  virtual void finish_wait() = 0;

  virtual Status health() { return {}; }  // polled off the datapath
  virtual TransportStats stats() const = 0;
};

}  // namespace gatun
