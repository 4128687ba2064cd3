// Runner: many seeds over several processes, and what to say about those that fail.
//
// A seed that kills its process (a GATUN_CHECK in the core) is a failure like any other: the parent notes it and goes on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/simulation.h"

namespace gatun::sim {

struct RunOptions {
  uint64_t first_seed = 1, seeds = 1000;
  std::vector<uint64_t> kept_seeds;  // run before all others
  int jobs = 1;
  Limits limits;
  uint64_t twice_every = 16;   // every so many seeds are run twice and must send the same packets; 0: none
  uint64_t failures_max = 20;  // stop after so many
  bool progress = false;
};

struct RunTotals {
  uint64_t seeds = 0, packets = 0, events = 0;
  std::array<uint64_t, kMarks> hits{}, seeds_hit{};
  std::vector<uint64_t> failed;
};

RunTotals run_seeds(const RunOptions& options);

// Why this seed fails, judged in a process of its own; empty if it does not.
std::string failure_of(uint64_t seed, const Limits& limits, uint64_t twice_every);
// The smallest limits under which the seed still fails.
Limits shrink(uint64_t seed, const Limits& limits);
// Prints the plan, the failure and the last events.
void explain(uint64_t seed, const Limits& limits);

}  // namespace gatun::sim
