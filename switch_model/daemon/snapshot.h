// Snapshot: what gatund looks like to an observer at one moment: jobs, lanes, the control channel. Plain values, from which
// health.h and metrics.h write their texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocols/membership.h"
#include "switch_model/daemon/jobs.h"
#include "switch_model/daemon/lane.h"

namespace gatun {

// What the control thread knows.
struct ControlFacts {
  struct Job {
    Membership::JobState state;
    uint64_t memory_bytes = 0;
  };
  std::vector<Job> jobs;
  Jobs::Counts counts;
  uint64_t connections = 0, refusals = 0;
};

struct Snapshot {
  enum State : uint8_t { kJoining, kRunning, kStalled };
  struct Job {
    uint32_t handle = 0;
    std::string name;  // UTF-8 and of this job only, whatever the ranks call it
    State state = kJoining;
    uint32_t ranks = 0, joined = 0, trees = 0, banks = 0, open = 0;
    uint64_t memory_bytes = 0, stalls = 0, failovers = 0;
    TreeStats stats;
    // The chunk that waits longest for some rank: for how long, for which ranks, and what operation it belongs to.
    TimeNs waited = 0;
    std::vector<uint32_t> missing;
    uint64_t operation = 0;
  };
  std::vector<Job> jobs;
  std::vector<Lane::Stats> lanes;
  uint64_t memory_bytes = 0, connections = 0, refusals = 0;
  bool stopping = false;
  std::string silent;  // the thread that does not answer: "the control thread", "lane 2"; else ""
};

// views: of all lanes. A job is stalled when a chunk has waited for a rank longer than stall_limit; 0: never.
Snapshot make_snapshot(const ControlFacts& facts, const std::vector<const Lane::View*>& views, TimeNs stall_limit,
                       TimeNs now);

// Bytes that are no UTF-8 become U+FFFD.
std::string valid_utf8(const std::string& text);

}  // namespace gatun
