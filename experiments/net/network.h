// Network: the ports of a topology, the packets on their links, and the clock.
//
// A port is a FIFO queue: when a packet comes, it is known when it will have left, so a hop is one event, and a link has one
// event pending however many packets are on it. A packet that finds more than K bytes before it is marked (a step, as DCTCP
// asks); one that would need more than the buffer is lost. Hosts mark, but lose nothing: their memory is the buffer.
//
// Invariant: packets sent = packets arrived + lost + on the links.
#pragma once

#include <cstdint>
#include <vector>

#include "experiments/net/histogram.h"
#include "experiments/net/packet.h"
#include "experiments/net/topology.h"
#include "tests/sim/event_queue.h"

namespace gatun::net {

enum class EventKind : uint8_t {
  kArrive,     // at the far end of a port
  kRank,       // a rank's timer
  kFlow,       // a flow's timer
  kComputed,   // a rank has its gradients
  kShortFlow,  // the next short flow begins
};

struct QueueLimits {
  uint32_t mark_bytes = 0, buffer_bytes = 0;  // 0: as usual at the port's rate
};
// DCTCP's 65 packets at 10 Gbit/s, 100 at 25, 300 at 100, and in proportion above; a buffer is 3.7 times as deep (240
// packets at 10 Gbit/s), as in the simulations of pFabric and PIAS.
QueueLimits usual_limits(uint32_t gbps);

class Network {
 public:
  using Queue = sim::EventQueue<EventKind>;
  struct Port {
    uint32_t ps_per_byte = 0;
    bool in_switch = false;
    TimePs delay = 0;
    TimePs mark_over = 0;  // marked when the queue takes longer than this to leave
    TimePs lose_over = 0;
    TimePs free_at = 0;                   // when the last packet will have left
    uint32_t head = kNone, tail = kNone;  // of the packets on the link
    uint64_t packets = 0, bytes = 0, marks = 0, losses = 0;
  };

  Network(const Topology& topology, const QueueLimits& limits);

  TimePs now() const { return now_; }
  const Topology& topology() const { return topology_; }
  void at(TimePs time, EventKind kind, uint32_t index) { queue_.push(time, kind, index); }

  // The next event; false: there is none. The packet of an arrival is then taken off its link with take_arrival().
  bool next(Queue::Event* event);
  uint32_t take_arrival() { return arrival_; }

  // A packet without a mark; its sender fills in the rest.
  uint32_t make() {
    const uint32_t made = pool_.take();
    Packet& packet = pool_.at(made);
    packet.congested = false;
    packet.markable = true;
    return made;
  }
  Packet& packet(uint32_t index) { return pool_.at(index); }
  void free(uint32_t index) { pool_.give_back(index); }
  // The packet is the port's from now on.
  void send(uint32_t port, uint32_t index);

  const std::vector<Port>& ports() const { return ports_; }
  const Histogram& queue_bytes() const { return queue_bytes_; }  // that packets found at switches
  uint64_t sent() const { return sent_; }
  uint64_t arrived() const { return arrived_; }
  uint64_t lost() const { return lost_; }
  uint64_t in_flight() const { return pool_.in_use(); }  // when nobody holds a packet
  uint64_t events() const { return events_; }
  uint64_t hash() const { return hash_; }  // of every event and when it was

 private:
  const Topology& topology_;
  std::vector<Port> ports_;
  PacketPool pool_;
  Queue queue_;
  TimePs now_ = 0;
  uint32_t arrival_ = kNone;
  Histogram queue_bytes_;
  uint64_t sent_ = 0, arrived_ = 0, lost_ = 0, events_ = 0;
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace gatun::net
