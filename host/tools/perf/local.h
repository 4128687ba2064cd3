// `gatun perf -g N`: a gatund of its own, N local ranks, and nothing left behind however it ends.
#pragma once

#include <string>
#include <vector>

#include "host/tools/perf/options.h"

namespace gatun::perf {

// arguments are those of `gatun perf`, for ranks that have to be started anew (by mpirun). Returns the exit code.
int run_local(const Options& options, const std::vector<std::string>& arguments);

}  // namespace gatun::perf
