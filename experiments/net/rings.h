// Rings: the baseline of the trees. The ranks of a job pass 2(n - 1) blocks of 1/n of the gradients around, over lasting
// DCTCP connections.
//
// A rank sends its own first block, then passes on what has come, packet by packet: a ring at its best, without a pause
// between steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experiments/net/flows.h"

namespace gatun::net {

class Rings {
 public:
  explicit Rings(Flows& flows) : flows_(flows) {}

  // Adds a job's ranks, the next in number; `order`: their places (0 .. n - 1) as the ring passes them.
  void add(std::span<const uint32_t> hosts, std::span<const uint32_t> order);
  // True: the rank's all-reduce ends with this; at once when it is alone.
  bool all_reduce(uint32_t rank, uint64_t bytes);
  bool on_packets(uint32_t rank, uint32_t packets);

 private:
  struct Rank {
    uint32_t ranks = 1;
    uint32_t flow = kNone;  // to the next
    uint64_t received = 0;  // packets in all
    uint64_t before = 0;    // of them, those of earlier all-reduces
    uint64_t block = 0;     // packets
    bool busy = false;      // its gradients are there and its results are not
    uint64_t total() const { return 2 * (ranks - 1) * block; }
  };

  bool pass_on(Rank& rank);

  Flows& flows_;
  std::vector<Rank> ranks_;
};

}  // namespace gatun::net
