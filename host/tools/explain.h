// `gatun explain`: which way a job's operations would take with these settings on this host, and why. It finds out by being
// such a job: two ranks of its own join, add a few numbers, and leave.
#pragma once

#include <string>
#include <vector>

namespace gatun {

int explain_main(const std::vector<std::string>& arguments);  // the exit code

}  // namespace gatun
