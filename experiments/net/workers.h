// Workers: the hosts' side of the trees. Each rank is the product's Worker; here its packets are made and its timer kept.
#pragma once

#include <cstdint>
#include <vector>

#include "experiments/net/network.h"
#include "experiments/net/trees.h"
#include "protocols/worker.h"

namespace gatun::net {

class Workers {
 public:
  struct Config {
    uint32_t mtu = 1500;
    uint32_t trees = 4, window = 64;
    bool congestion_control = true;  // false: the window stands at its limit, whatever is marked or lost
    TimeNs rto_min = 2 * kMs;
  };

  Workers(Network& network, const Config& config);

  // Ranks are numbered as they are added. One seat a tree.
  void add(uint32_t job, uint32_t host, std::vector<Trees::Seat> seats);
  void all_reduce(uint32_t rank, uint64_t bytes);
  // True: the rank's all-reduce ends with this packet.
  bool on_packet(uint32_t packet);
  void on_timer(uint32_t rank);

  uint32_t payload_bytes() const { return payload_bytes_; }
  uint64_t resent() const;
  uint32_t window(uint32_t rank, uint32_t tree) const { return ranks_[rank].worker.window_chunks(tree); }

 private:
  struct Rank {
    Worker worker;
    uint32_t job = 0, nic = kNone;
    std::vector<Trees::Seat> seats;
    uint64_t chunks = 0;  // of the operation
    uint32_t contract = 0;
    uint32_t last_elems = 0;      // in its last chunk
    TimePs wakes_at = INT64_MAX;  // the timer's event; INT64_MAX: none is pending
  };

  Worker::Config worker_config() const;
  void send_due(uint32_t rank);
  void send(Rank& rank, const Worker::Chunk& chunk);
  void arm(uint32_t rank);

  Network& network_;
  Config config_;
  uint32_t payload_bytes_;
  std::vector<Rank> ranks_;
};

}  // namespace gatun::net
