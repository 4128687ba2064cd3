// Plan: everything that one round chooses, from its seed alone: the job, its load, and the faults in their order.
//
// The moments are counted in batches of operations that the job completes, and a delay behind; what is hit in such a moment
// is for the machine to say. So a seed replays the same choices, not the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gatun::chaos {

enum class Fault : uint8_t {
  kNone,  // loss and load only
  kSwitchKilled,
  kSwitchStopped,
  kSwitchTerminated,
  kDataCut,
  kControlCut,
  kAllCut,
  kMeshStalled,  // two ranks do not hear each other for a while, or one does not hear the other
  kRankKilled,
  kRankStopped,
  // Only by themselves, in a job that has no switch: for good.
  kMeshCut,     // as kMeshStalled
  kMeshBroken,  // the connections between two ranks end
};
inline constexpr int kFaults = 12;
inline constexpr int kFaultsAmongOthers = 9;  // up to kRankKilled
const char* name(Fault fault);

enum class Act : uint8_t {
  kKillSwitch,
  kTerminateSwitch,
  kStartSwitch,
  kStopSwitch,
  kContinueSwitch,
  kCut,  // data, control: which of them
  kHeal,
  kCutMesh,  // between rank and other: what rank hears, or both if both_ways
  kBreakMesh,
  kKillRank,
  kStopRank,
  kContinueRank,
};

struct Step {
  Act act = Act::kKillSwitch;
  int batches = 0;   // that the job first completes, unless it stands still
  int delay_us = 0;  // behind them
  int rank = -1, other = -1;
  bool data = false, control = false;
  bool both_ways = false;  // what the switch says is cut too
  bool on_switch = false;  // first the job must have gone back to the switch, if it does in time
};

struct Plan {
  uint64_t seed = 0;
  int ranks = 2, trees = 1, window = 0, payload_bytes = 0;
  std::string transport = "shm", fallback = "ring";
  int detect_ms = 0;  // 0: the default
  int timeout_ms = 0, join_timeout_ms = 0;
  bool lossy = false;        // loss, duplication, reordering, corruption
  bool switch_first = true;  // there is a gatund when the ranks begin
  bool in_join = false;      // the first fault comes while the ranks join, which may fail then, but must end for all
  bool stays = false;        // the last fault of the switch is not undone: the ranks leave under it
  bool returns = false;      // operations must go through the switch again at the end
  int in_flight = 1;
  uint64_t count_max = 1;
  std::vector<Fault> faults;
  std::vector<Step> steps;
  uint64_t killed = 0;  // ranks, by bit
  int late = -1;        // the rank that is stopped for longer than the timeout
  uint64_t apart = 0;   // ranks, by bit, that are cut off from each other for good
};

// can_cut: whether this machine lets us cut connections; rounds with a cut have no fault instead then, and skipped says so.
Plan make_plan(uint64_t seed, bool can_cut, bool* skipped);

std::string text(const Plan& plan);

}  // namespace gatun::chaos
