// `gatun doctor`: what is missing on this host and on the path to the switch, what that means, and what mends it. It looks
// at what can be looked at and tries the rest with small jobs of its own; every step is bounded.
#pragma once

#include <string>
#include <vector>

namespace gatun {

// The exit code: 0 when nothing is missing that these settings need, 1 when something is, 2 for wrong arguments.
int doctor_main(const std::vector<std::string>& arguments);

}  // namespace gatun
