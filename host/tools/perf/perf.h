// `gatun perf`: decides whether this process is a rank of a launcher, a rank of its own parent, or the parent of local
// ranks.
#pragma once

#include <string>
#include <vector>

namespace gatun {

int perf_main(const std::vector<std::string>& arguments);  // the exit code

}  // namespace gatun
