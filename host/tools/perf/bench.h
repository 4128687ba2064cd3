// The measuring loops of one rank: nccl-tests' rows, and comparisons with peers in turns.
//
// All ranks run the same loops and take the same decisions, because every decision is made from numbers that all have
// exchanged. A failure ends the run by throwing Failure; run_rank() reports it once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gatun/gatun.h"
#include "host/tools/perf/group.h"
#include "host/tools/perf/options.h"
#include "host/tools/perf/peers.h"
#include "host/tools/perf/report.h"
#include "host/tools/perf/workload.h"

namespace gatun::perf {

struct Failure {
  std::string text;
};
inline void require(const std::string& error) {
  if (!error.empty()) throw Failure{error};
}

class Bench {
 public:
  // report is null on every rank but 0.
  Bench(const Options& options, Group& group, gatun_comm_t comm, std::vector<std::unique_ptr<Peer>>& peers, Report* report);
  void run();

 private:
  struct Meter;  // times and counters of one timed loop
  struct Entry;  // one contestant and how to run it
  void run_collective();
  void run_sizes(gatun_type_t type, gatun_op_t op, int root);
  void warm_up(const Shape& shape);
  Timing measure(const Shape& shape, bool in_place);
  uint64_t check(const Shape& shape, bool in_place);
  void compare(const Shape& shape);
  static void drop_slow_variants(std::vector<Entry>& entries, double factor);
  void report_comparison(const Shape& shape, const Timing& ours, const std::vector<Entry>& entries);
  void check_peer(const Shape& shape, Peer& peer, int variant);
  std::vector<Entry> contestants(const Shape& shape);
  int choose_pace(std::vector<Entry>& entries);
  double timed_us(Entry& entry, int iters);
  double over(double value, Average how);
  double sum(double value);

  const Options& options_;
  Group& group_;
  gatun_comm_t comm_;
  std::vector<std::unique_ptr<Peer>>& peers_;
  Report* report_;
  Workload workload_;
};

}  // namespace gatun::perf
