// What `gatun perf` prints and writes: nccl-tests' header, rows and summary, then Gatun's columns; the same as JSON.
//
// Only rank 0 owns a report. Rows appear as they are measured.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gatun/gatun.h"
#include "host/tools/perf/options.h"
#include "host/tools/perf/workload.h"

namespace gatun::perf {

struct Timing {
  double us = 0;       // of one operation
  double cpu_us = 0;   // CPU time of a rank for one operation
  uint64_t wrong = 0;  // over all ranks
  bool checked = false;
  double wire_bytes = 0;  // of one operation and rank, with headers, in the busier direction
  uint64_t resent = 0;    // over all ranks, in the whole timed loop
};

struct RankInfo {
  char host[64];
  int pid;
};

// One side of a comparison.
struct Contestant {
  std::string name;            // "gatun", "gloo", "mpi"
  std::string variant;         // the peer's algorithm, "" for Gatun
  std::vector<double> us;      // of one operation, one entry per repetition
  std::vector<double> cpu_us;  // of a rank for one operation, mean over ranks; what the switch uses is not in it
  int iters = 0;
  double median_us() const;
  double spread() const;  // (third quartile - first quartile) / median
};

struct RunInfo {
  gatun_stats_t stats;   // transport, address, payload, trees, window
  std::string launcher;  // "", "torchrun", ...
  bool own_switch = false;
  std::vector<RankInfo> ranks;
  std::vector<std::string> peers;  // what they say they are
};

class Report {
 public:
  explicit Report(const Options& options);
  ~Report();

  void begin(const RunInfo& info);
  void row(const Shape& shape, const Timing& out_of_place, const Timing& in_place);
  // ours first; one entry per peer, each the best of its variants (all_peers has every variant, for JSON).
  void comparison(const Shape& shape, const Timing& ours, const std::vector<Contestant>& best,
                  const std::vector<Contestant>& all);
  // Prints the summary and writes the JSON file; stats: of this rank, over all. "" or why the file could not be written.
  std::string end(const gatun_stats_t& stats);
  uint64_t wrong() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A number in `width` characters, with as many decimals as fit (at most two).
std::string fit(double value, int width);

}  // namespace gatun::perf
