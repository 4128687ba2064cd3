#include "tests/chaos/plan.h"

#include <algorithm>
#include <random>
#include <utility>

namespace gatun::chaos {
namespace {

using Random = std::mt19937_64;

int between(Random& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}
bool one_in(Random& random, int n) {
  return between(random, 1, n) == 1;
}

// How long a fault lasts: mostly so short that it ends while the ranks are still about to find out.
int hold_us(Random& random) {
  return one_in(random, 4) ? between(random, 200'000, 900'000) : between(random, 0, 150'000);
}

class Planner {
 public:
  Planner(Random& random, bool alone, Plan* plan) : random_(random), alone_(alone), plan_(*plan) {}

  void add(Fault fault) {
    plan_.faults.push_back(fault);
    switch (fault) {
      case Fault::kNone: return;
      case Fault::kSwitchKilled: return for_a_while(Act::kKillSwitch, Act::kStartSwitch);
      case Fault::kSwitchStopped: return stop_switch();
      case Fault::kSwitchTerminated: return for_a_while(Act::kTerminateSwitch, Act::kStartSwitch);
      case Fault::kDataCut: return for_a_while(Act::kCut, Act::kHeal, {.data = true});
      case Fault::kControlCut: return for_a_while(Act::kCut, Act::kHeal, {.control = true});
      case Fault::kAllCut: return for_a_while(Act::kCut, Act::kHeal, {.data = true, .control = true});
      case Fault::kMeshStalled: return for_a_while(Act::kCutMesh, Act::kHeal, two_ranks());
      case Fault::kRankKilled: return kill_rank();
      case Fault::kRankStopped: return stop_rank();
      case Fault::kMeshCut: return part(Act::kCutMesh);
      case Fault::kMeshBroken: return part(Act::kBreakMesh);
    }
  }

 private:
  struct Moment {  // in braces, so that it is drawn in order
    int batches, delay_us;
  };
  void push(Act act, Moment moment, Step how = {}) {
    how.act = act;
    how.batches = moment.batches;
    how.delay_us = moment.delay_us;
    plan_.steps.push_back(how);
  }
  void for_a_while(Act begin, Act end, Step how = {}) {
    how.both_ways = one_in(random_, 2);
    how.on_switch = !plan_.steps.empty() && one_in(random_, 2);
    push(begin, {between(random_, 0, 4), between(random_, 0, 20'000)}, how);
    how.on_switch = false;
    push(end, {between(random_, 0, 3), hold_us(random_)}, how);
  }
  // It goes on after a while, or is killed as it is.
  void stop_switch() {
    if (!one_in(random_, 4)) return for_a_while(Act::kStopSwitch, Act::kContinueSwitch);
    push(Act::kStopSwitch, {between(random_, 0, 4), between(random_, 0, 20'000)});
    for_a_while(Act::kKillSwitch, Act::kStartSwitch);
  }
  // Neighbours on the ring, so that no operation of all goes on without them.
  Step two_ranks() {
    const int rank = between(random_, 0, plan_.ranks - 1);
    const int other = (rank + (one_in(random_, 2) ? 1 : plan_.ranks - 1)) % plan_.ranks;
    return {.rank = rank, .other = other};
  }
  void part(Act act) {
    plan_.switch_first = false;
    plan_.steps.clear();
    Step step = two_ranks();
    step.both_ways = one_in(random_, 2);
    plan_.apart = uint64_t{1} << step.rank | uint64_t{1} << step.other;
    push(act, {between(random_, 0, 4), between(random_, 0, 20'000)}, step);
  }
  void kill_rank() {
    const int rank = between(random_, 0, plan_.ranks - 1);
    plan_.killed |= uint64_t{1} << rank;
    push(Act::kKillRank, {between(random_, 0, 6), between(random_, 0, 30'000)}, {.rank = rank});
    if (plan_.ranks < 3 || !one_in(random_, 4)) return;
    const int other = (rank + between(random_, 1, plan_.ranks - 1)) % plan_.ranks;
    plan_.killed |= uint64_t{1} << other;
    push(Act::kKillRank, {0, one_in(random_, 2) ? 0 : between(random_, 0, 5000)}, {.rank = other});
  }
  void stop_rank() {
    const int rank = between(random_, 0, plan_.ranks - 1);
    push(Act::kStopRank, {between(random_, 0, 4), between(random_, 0, 20'000)}, {.rank = rank});
    if (alone_ && one_in(random_, 4)) {
      plan_.late = rank;  // until all others have given up
    } else {
      push(Act::kContinueRank, {0, hold_us(random_)}, {.rank = rank});
    }
  }

  Random& random_;
  const bool alone_;  // one fault in the round
  Plan& plan_;
};

bool cuts(Fault fault) {
  switch (fault) {
    case Fault::kDataCut:
    case Fault::kControlCut:
    case Fault::kAllCut:
    case Fault::kMeshStalled:
    case Fault::kMeshCut:
    case Fault::kMeshBroken: return true;
    default: return false;
  }
}

// Several faults of a switch one after the other, at times with one of a rank among them; or a single one.
void plan_faults(Random& random, bool can_cut, Plan* plan, bool* skipped) {
  const bool several = one_in(random, 3);
  Planner planner(random, !several, plan);
  const int count = several ? between(random, 2, 4) : 1;
  for (int i = 0; i < count; ++i) {
    auto fault = static_cast<Fault>(between(random, 0, (several ? kFaultsAmongOthers : kFaults) - 1));
    if (several && fault == Fault::kRankKilled && i + 1 < count) fault = Fault::kRankStopped;
    if (fault == Fault::kDataCut || fault == Fault::kAllCut) plan->transport = "udp";  // shared memory cannot be cut
    if (cuts(fault) && !can_cut) {
      *skipped = true;
      fault = Fault::kNone;
    }
    planner.add(fault);
  }
}

bool undoes(const Step& step) {
  return step.act == Act::kStartSwitch || step.act == Act::kContinueSwitch || step.act == Act::kHeal;
}

// Much through little, or much with every packet that is lost waited for, would only take long.
uint64_t count_max(Random& random, const Plan& plan) {
  constexpr uint64_t kCounts[] = {40, 2000, 20'000, 100'000};
  const bool narrow = (plan.window > 0 && plan.window < 16) || (plan.payload_bytes > 0 && plan.payload_bytes < 1024);
  return kCounts[between(random, 0, 3 - (narrow ? 1 : 0) - (plan.lossy ? 1 : 0))];
}

// What is peculiar about the beginning and the end.
void plan_edges(Random& random, Plan* plan) {
  if (plan->late >= 0 || plan->apart != 0 || plan->steps.empty()) return;
  plan->in_join = plan->switch_first && one_in(random, 8);
  if (plan->in_join) {
    plan->steps.front().batches = 0;
    plan->steps.front().delay_us = between(random, 0, 40'000);
    plan->join_timeout_ms = 3000;
  }
  plan->stays = plan->killed == 0 && undoes(plan->steps.back()) && plan->steps.size() > 1 &&
                plan->faults.back() != Fault::kMeshStalled && one_in(random, 4);
  if (plan->stays) plan->steps.pop_back();
  // A job that suspects its switch again and again without cause leaves it alone for longer and longer.
  const bool trusts = plan->detect_ms == 0 || plan->detect_ms >= 80;
  plan->returns = plan->killed == 0 && !plan->stays && trusts && one_in(random, 4);
}

}  // namespace

const char* name(Fault fault) {
  static constexpr const char* kNames[kFaults] = {"none",        "switch killed", "switch stopped", "switch terminated",
                                                  "data cut",    "control cut",   "all cut",        "mesh stalled",
                                                  "rank killed", "rank stopped",  "mesh cut",       "mesh broken"};
  return kNames[static_cast<int>(fault)];
}

Plan make_plan(uint64_t seed, bool can_cut, bool* skipped) {
  Random random(seed * 0x9e3779b97f4a7c15u + 1);
  Plan plan{.seed = seed};
  plan.ranks = between(random, 2, 5);
  plan.trees = one_in(random, 2) ? 1 : between(random, 2, 4);
  plan.transport = one_in(random, 2) ? "shm" : "udp";
  plan.fallback = one_in(random, 2) ? "ring" : "exact";
  plan.join_timeout_ms = 20'000;
  plan.detect_ms = one_in(random, 2) ? 0 : one_in(random, 2) ? between(random, 80, 200) : between(random, 10, 40);
  plan.window = one_in(random, 2) ? 0 : 2 << between(random, 0, 5);
  plan.payload_bytes = one_in(random, 2) ? 0 : 64 * between(random, 2, 32);
  plan.in_flight = between(random, 1, 10);
  plan.switch_first = !one_in(random, 10);
  if (!plan.switch_first) plan.steps.push_back({.act = Act::kStartSwitch, .batches = between(random, 0, 5)});
  plan_faults(random, can_cut, &plan, skipped);
  plan_edges(random, &plan);
  plan.lossy = plan.transport == "udp" && one_in(random, 2);
  plan.count_max = count_max(random, plan);
  plan.timeout_ms = plan.late >= 0 || plan.apart != 0 ? between(random, 1000, 1500) : 60'000;
  return plan;
}

std::string text(const Plan& plan) {
  std::string text = "seed " + std::to_string(plan.seed) + ": " + std::to_string(plan.ranks) + " ranks, " + plan.transport +
                     (plan.lossy ? " lossy" : "") + ", trees " + std::to_string(plan.trees) + ", window " +
                     std::to_string(plan.window) + ", payload " + std::to_string(plan.payload_bytes) + ", " + plan.fallback +
                     ", detect " + std::to_string(plan.detect_ms) + ", in flight " + std::to_string(plan.in_flight) +
                     ", count to " + std::to_string(plan.count_max) + (plan.switch_first ? "" : ", no switch first") +
                     (plan.in_join ? ", in join" : "") + (plan.stays ? ", stays" : "") + (plan.returns ? ", returns" : "") +
                     "; ";
  const char* separator = "";
  for (const Fault fault : plan.faults) text += std::exchange(separator, ", ") + std::string(name(fault));
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (plan.apart >> rank & 1) text += " " + std::to_string(rank);
  }
  return text;
}

}  // namespace gatun::chaos
