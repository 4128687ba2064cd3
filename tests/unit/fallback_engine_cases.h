// Collectives on the engines of host/fallback, and what they must answer: the switch's scalar reference, level by level.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fallback_ranks.h"
#include "kernels_test.h"

namespace gatun {

using Bytes = std::vector<uint8_t>;

inline constexpr Collective kAllCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                                 Collective::kBroadcast, Collective::kReduce,        Collective::kBarrier};

struct EngineCase {
  Contract contract;
  bool in_place = false;
  size_t shift = 0;  // of every buffer, against alignment
};

// What the switches of a tree with these groups answer: inputs by rank, all of `elems` elements.
Bytes reduced(Type type, Op op, const std::vector<uint32_t>& groups, const std::vector<Bytes>& inputs, size_t elems);

class EngineGroup {
 public:
  using Make = std::function<Result<std::unique_ptr<Engine>>(Mesh*)>;
  // fill(type, to, elems): what ranks contribute.
  using Fill = std::function<void(Type, uint8_t*, size_t)>;

  EngineGroup(uint32_t ranks, const Make& make);
  uint32_t ranks() { return meshes.ranks(); }
  // Runs the case and compares every rank's whole buffer, with guards, with what it must be.
  void check(const EngineCase& test, const std::vector<uint32_t>& groups, const Fill& fill);

  Group meshes;
  std::vector<std::unique_ptr<Engine>> engines;
};

// Numbers whose sums and products are exact in every type, so that the order does not matter: 0, 1, 2 and, where there is a
// sign, -1 and -2.
EngineGroup::Fill small_numbers(uint32_t seed);

}  // namespace gatun
