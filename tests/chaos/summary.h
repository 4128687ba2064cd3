// Summary of many rounds: how many, which faults, and for how long operations stood still.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/board.h"
#include "tests/chaos/plan.h"

namespace gatun::chaos {

class Summary {
 public:
  enum class End : uint8_t { kRight, kWrong, kHang };
  void add(const Plan& plan, const Board& board, End end);
  void print(const std::string& cannot_cut, uint32_t skipped) const;
  uint32_t rounds() const { return rounds_; }
  bool right() const { return wrong_.empty() && hangs_.empty(); }

 private:
  uint32_t rounds_ = 0, lossy_ = 0;
  std::vector<uint64_t> wrong_, hangs_;  // seeds
  std::array<uint32_t, kFaults> faults_{};
  uint64_t operations_ = 0, ring_operations_ = 0, failovers_ = 0;
  // The longest operation of each round with one kind of fault, no loss, and a job that lived: at the default detection
  // time, and at shorter ones.
  using Longest = std::pair<TimeNs, uint64_t>;  // and the seed
  std::array<std::vector<Longest>, kFaults> longest_, longest_quick_;
  std::vector<Longest> destroy_;  // of each round
};

}  // namespace gatun::chaos
