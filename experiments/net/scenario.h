// Scenario: everything that decides a run, and what came out of it. One scenario is one report, bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/net/network.h"
#include "experiments/net/topology.h"
#include "experiments/net/trees.h"
#include "experiments/net/workload.h"

namespace gatun::net {

enum class Reduction : uint8_t { kTrees, kRing };
// As a window: what the path holds twice, over the trees of a job.
inline constexpr uint32_t kWindowOfPath = 0;

enum class RingOrder : uint8_t { kByLeaf, kByRank };

struct JobKind {
  std::string model;
  uint32_t ranks = 0;
  TimePs compute = 0;
};

struct Scenario {
  std::string topology = "leaf-spine";
  Shape shape;
  QueueLimits limits;
  uint32_t mtu = 1500;
  TimeNs rto_min = 2 * kMs;

  Reduction reduction = Reduction::kTrees;
  uint32_t trees = 4, window = 64;
  bool congestion_control = true;
  Trees::Roots roots = Trees::Roots::kInTurn;
  RingOrder ring_order = RingOrder::kByLeaf;

  std::vector<JobKind> jobs;
  Placement placement = Placement::kSpread;
  uint32_t iterations = 3;
  double scale = 1;  // of gradients and compute times

  std::string sizes = "web-search";
  double load = 0;
  bool ecn = true;  // of short flows and rings: DCTCP; false: TCP
  TimePs time = 0;  // short flows arrive, and jobs go on, at least as long

  uint64_t seed = 1;
};

struct Times {  // ms
  uint64_t count = 0;
  double mean = 0, median = 0, p99 = 0;
};

struct JobReport {
  std::string model;
  uint32_t ranks = 0;
  uint64_t iterations = 0;   // until it was told to stop
  double iteration_ms = 0;   // mean of those that were asked for
  double all_reduce_ms = 0;  // of that, not computing
  double job_ms = 0;         // from its begin until it had them
};

struct Report {
  std::vector<JobReport> jobs;
  double iteration_ms = 0, job_ms = 0;  // means over jobs
  Times flows[ShortFlows::kBins];
  uint64_t packets = 0, marks = 0, losses = 0, resent = 0, statuses = 0;
  uint64_t chunks = 0, chunks_marked = 0;  // completed at roots; of those, with a mark of any branch
  double queue_mean = 0;                   // bytes that packets found before them at switches
  uint64_t queue_p99 = 0, queue_max = 0;
  double imbalance = 0;  // the busiest link from a leaf upwards, over the mean of these
  TimePs arrivals_end = 0, end = 0;
  uint64_t events = 0, hash = 0;
  double wall_s = 0;

  double marked() const { return packets > 0 ? static_cast<double>(marks) / static_cast<double>(packets) : 0; }  // share
  double events_per_s() const { return wall_s > 0 ? static_cast<double>(events) / wall_s : 0; }
};

}  // namespace gatun::net
