// Time as the machines see it: nanoseconds from an arbitrary origin, always passed in, never read.
#pragma once

#include <cstdint>

namespace gatun {

using TimeNs = int64_t;
inline constexpr TimeNs kUs = 1000;
inline constexpr TimeNs kMs = 1000 * kUs;
inline constexpr TimeNs kSecond = 1000 * kMs;
inline constexpr TimeNs kNever = INT64_MAX;

}  // namespace gatun
