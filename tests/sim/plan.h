// Plan: everything that one seed means, drawn before the run: shapes, operations, which faults exist and how often, what is
// cut or paused when. The run adds only the per-packet fates, which are streams of the same seed.
//
// Swarm testing (Groce et al., ISSTA 2012): each fault class is absent from about half of the runs, so that no class hides
// what another would show. Limits cut a plan down without shifting any other draw; the shrinker uses them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "protocols/contract.h"
#include "protocols/seq.h"
#include "protocols/time.h"
#include "protocols/types.h"

namespace gatun::sim {

inline constexpr uint32_t kRanksMax = 16;  // of a job
inline constexpr uint32_t kSwitches = 7;   // four leaves, two inner, one root at most
inline constexpr uint32_t kLinesMax = 3;
inline constexpr uint32_t kPayloadMax = 128;  // bytes of one packet's payload
inline constexpr uint32_t kEndpoints = kSwitches + kLinesMax * kRanksMax + 1;
inline constexpr uint32_t kStranger = kEndpoints - 1;  // an address that belongs to nobody

enum class Fault : uint8_t {
  kLoss,
  kDuplicate,
  kReorder,
  kSpike,
  kCorrupt,
  kTruncate,
  kReplay,
  kForge,
  kCut,
  kPause,
  kSlowSwitch,
  kMark,
  kMismatch,
  kKill,
  kCrash,    // of a switch, which loses its state
  kSuspect,  // of a switch that works
  kReturn,   // to a switch, from the ring
  kDeath,    // of one rank of a job that would outlive its switch
};
inline constexpr int kFaults = 18;
const char* name(Fault fault);

struct Limits {
  uint32_t without = 0;  // bit per Fault
  uint32_t ranks = kRanksMax;
  uint32_t trees = 4;
  uint32_t levels = 3;
  uint32_t ops = 100;
  uint32_t lines = kLinesMax;
  uint32_t epochs = 2;
};

// One switch's place in one tree.
struct SwitchPlan {
  struct Child {
    bool is_switch = false;
    uint32_t index = 0;  // rank, or index in TreePlan::switches
  };
  uint32_t id = 0;  // physical switch
  int parent = -1;  // index in TreePlan::switches; -1: root
  uint32_t child_at_parent = 0;
  std::vector<Child> children;
  std::vector<std::vector<uint16_t>> child_ranks;
};

struct TreePlan {
  std::vector<SwitchPlan> switches;  // children before parents; the last is the root
  struct Leaf {
    uint32_t index = 0;  // in switches
    uint32_t child = 0;
  };
  std::vector<Leaf> leaf_of_rank;
};

enum class Values : uint8_t {
  kIntegers,  // exact in every order
  kTags,      // one field of bits per rank: a wrong sum names the rank that is missing or doubled
  kRough,     // every order gives other bits
};

struct OpPlan {
  Collective collective = Collective::kAllReduce;
  Type type = Type::kF32;
  Op op = Op::kSum;
  uint32_t root = 0;
  uint64_t elems = 0;  // of one part: of the whole, except for all-gather and reduce-scatter, where each rank has a part
  uint64_t tag = 0;
  Values values = Values::kIntegers;
  bool in_place = false;
  uint64_t key = 0;  // of its values

  Contract contract() const {
    return {.collective = collective, .type = type, .op = op, .root = root, .count = elems, .tag = tag};
  }
};

// What the ranks call; the ranks of odd_ranks call something else.
struct CallPlan {
  OpPlan op;
  uint32_t odd_ranks = 0;
  OpPlan odd;
  bool same() const { return odd_ranks == 0; }
  const OpPlan& of(uint32_t rank) const { return odd_ranks >> rank & 1 ? odd : op; }
};

enum class Path : uint8_t { kCopied, kShared, kSharedLossy };  // as udp; as shared memory; that under a lossy wrapper

struct JobPlan {
  uint32_t line = 0, epoch = 0;
  uint32_t handle = 0;
  uint64_t token = 0;
  uint32_t ranks = 1, trees = 1, levels = 1;
  uint32_t window = 1, window_initial = 1;
  uint32_t payload_bytes = 64;
  Seq first_seq = 0;
  uint32_t first_op = 0;
  uint32_t in_flight_max = 1;    // operations
  TimeNs think_max = 0;          // between two submissions of a rank
  TimeNs skew_max = 0;           // between the ranks' starts
  TimeNs killed_after = kNever;  // its start
  TimeNs rto_initial = 0, rto_min = 0, rto_max = 0;
  bool exam = false;  // ends with the test that the timeout has come down again
  std::vector<TreePlan> tree_plans;
  std::vector<Path> paths;  // per rank
  std::vector<CallPlan> calls;

  uint32_t elems_per_chunk(Type type) const {
    return payload_bytes / static_cast<uint32_t>(elem_bytes(levels > 1 ? partial_type(type) : type));
  }
};

struct Cut {
  uint32_t from = 0, to = 0;  // endpoints
  TimeNs at = 0, until = 0;
};

struct Pause {
  uint32_t endpoint = 0;
  TimeNs at = 0, until = 0;
};

// The way without a switch, in half of all seeds: their jobs have one epoch in the plan, and the run makes more.
struct FailoverPlan {
  bool on = false;
  TimeNs detect = 0;     // silence after which a rank gives up its switch
  TimeNs mesh_max = 0;   // delay of a message between ranks
  uint32_t crashes = 0;  // of all switches together
  uint64_t crash_after_max = 1;  // packets that a switch takes before it crashes
  TimeNs down_max = 0;
  uint32_t suspicions = 0;  // of a rank without cause
  uint32_t returns = 0;     // to a switch, per job
  TimeNs return_after_max = 0;
  bool begins_on_ring = false;
  uint64_t death_after = 0;  // messages on the mesh of a job; 0: nobody dies
};

struct Plan {
  uint64_t seed = 0;
  Limits limits;
  std::array<uint32_t, kFaults> ppm{};  // 0: the class does not exist in this run
  TimeNs heals_at = 0;                  // no fault after this
  TimeNs delay_min = 0, delay_max = 0;  // of one link
  TimeNs spike_max = 0;
  TimeNs timer_slack = 0;
  TimeNs switch_burst = 0;                  // how long a switch lets packets gather
  bool switches_share = false;              // switch to switch by reference
  uint32_t misalign = 0;                    // of payloads in receive buffers, bytes
  uint32_t marked_link = kEndpoints;        // an endpoint whose outgoing packets are all marked
  std::vector<std::vector<JobPlan>> lines;  // per line its jobs, one after the other on the same hosts
  FailoverPlan failover;
  std::vector<Cut> cuts;
  std::vector<Pause> pauses;

  bool has(Fault fault) const { return ppm[static_cast<size_t>(fault)] != 0; }
  uint32_t rate(Fault fault) const { return ppm[static_cast<size_t>(fault)]; }
  // When an endpoint that is wanted at that time runs, given its pauses.
  TimeNs runs_at(uint32_t endpoint, TimeNs at) const;
};

constexpr uint32_t host_endpoint(uint32_t line, uint32_t rank) {
  return kSwitches + line * kRanksMax + rank;
}

Plan draw_plan(uint64_t seed, const Limits& limits);
// Other trees for a later epoch of a job.
std::vector<TreePlan> draw_trees(const Plan& plan, const JobPlan& job, uint32_t epoch);
// The drawn plan for people, a few lines.
std::string describe(const Plan& plan);
// The arguments of gatun-sim that repeat it.
std::string arguments(uint64_t seed, const Limits& limits);

}  // namespace gatun::sim
