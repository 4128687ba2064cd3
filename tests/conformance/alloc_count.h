// Counts every operator new in this program, from any thread.
#pragma once

#include <cstdint>

namespace gatun::conformance {

uint64_t allocations();

}  // namespace gatun::conformance
