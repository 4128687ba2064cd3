// One rank of a run, from joining the job to leaving it.
#pragma once

#include <string>

#include "host/tools/perf/group.h"
#include "host/tools/perf/options.h"

namespace gatun::perf {

struct Place {
  int rank = 0, nranks = 1;
  std::string launcher;  // "" when the parent is `gatun perf -g N`
  std::string address;   // of the switch; "" = the library's settings
  std::string job;       // "" = the library's settings
  bool own_switch = false;
  Board* board = nullptr;  // null when a launcher started this process: then errors go to stderr
  std::string directory;   // of the run; "" = rank 0 makes one
};

// Returns the exit code: 0, or 1 after wrong elements or an error, which has been reported.
int run_rank(const Options& options, const Place& place);

}  // namespace gatun::perf
