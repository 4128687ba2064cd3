// Flows: DCTCP or TCP between hosts, counted in packets. Each packet is acknowledged by the first that is missing, with an
// echo of its mark; three repeated acknowledgements or a timeout repeat a packet (NewReno).
//
// The window is the product's CongestionWindow, which is DCTCP's law, and the timer its RttEstimator, so a flow and a job
// differ only in who acknowledges. A flow may send up to its limit: all of a short flow, what is there so far of a ring's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "experiments/net/network.h"
#include "protocols/congestion.h"

namespace gatun::net {

class Flows {
 public:
  struct Config {
    uint32_t mtu = 1500;
    TimeNs rto_min = 2 * kMs;
    bool ecn = true;               // false: plain TCP (NewReno), which fills the buffers
    uint32_t window_initial = 10;  // RFC 6928
    uint64_t seed = 1;
  };
  // What the receiver has learnt from a packet.
  struct News {
    uint32_t flow = kNone;
    uint32_t packets = 0;   // that are there in order now and were not before
    bool complete = false;  // a short flow: all is there
  };

  Flows(Network& network, const Config& config);

  // A short flow, which ends by itself.
  uint32_t open(uint32_t from, uint32_t to, uint64_t bytes);
  // A lasting one, which may send nothing yet. `rank`: whose it is at the receiver.
  uint32_t connect(uint32_t from, uint32_t to, uint32_t rank);
  void allow(uint32_t flow, uint64_t packets);  // so many in all

  News on_segment(uint32_t packet);
  void on_ack(uint32_t packet);
  void on_timer(uint32_t flow);

  uint64_t bytes(uint32_t flow) const { return flows_[flow].bytes; }
  TimePs started(uint32_t flow) const { return flows_[flow].started; }
  uint32_t rank(uint32_t flow) const { return flows_[flow].rank; }
  uint32_t payload_bytes() const { return payload_bytes_; }
  uint32_t active() const { return active_; }
  uint64_t resent() const { return resent_; }

 private:
  struct Flow {
    CongestionWindow window;
    RttEstimator rtt;
    uint32_t from = 0, to = 0, hash = 0, rank = kNone;
    uint64_t bytes = 0;  // of a short flow
    TimePs started = 0;
    uint64_t limit = 0;             // packets that may be sent
    uint64_t oldest = 0, next = 0;  // without acknowledgement; to send
    uint64_t recover = 0;           // a loss is being repaired until this is acknowledged
    uint32_t repeated_acks = 0, timeouts = 0;
    TimePs due = 0;                                     // the timeout
    uint64_t received = 0;                              // in order
    std::vector<std::pair<uint64_t, uint64_t>> beyond;  // received past a gap: [first, last), sorted
    bool timer = false;                                 // an event is pending; it stays with the place when the flow ends
    bool open = false;
  };

  uint32_t place(uint32_t from, uint32_t to);
  void send_more(uint32_t index);
  void send(uint32_t index, uint64_t seq);
  void arm(uint32_t index);
  void accept(Flow& flow, uint64_t seq);
  void acknowledge(const Flow& flow, const Packet& data);
  uint32_t wire_bytes(const Flow& flow, uint64_t seq) const;

  Network& network_;
  Config config_;
  uint32_t payload_bytes_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> unused_;
  uint32_t active_ = 0;
  uint64_t opened_ = 0, resent_ = 0;
};

}  // namespace gatun::net
