// What the files of the reduction kernels share: one entry point per family of types, and the divisor of integers.
//
// Each entry dispatches to the chosen instruction set. The caller has checked the arguments and set the floating-point
// environment (kernels.cc).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "switch_model/kernels.h"

namespace gatun {

void reduce_float(const ReduceArgs& args);    // f32 f64
void reduce_half(const ReduceArgs& args);     // f16 bf16
void reduce_float8(const ReduceArgs& args);   // f8e4m3 f8e5m2
void reduce_integer(const ReduceArgs& args);  // the rest

// floor(n / d) without dividing: Granlund and Montgomery, "Division by invariant integers using
// multiplication" (PLDI 1994), figure 4.1.
//   t = mulhi(multiplier, n); q = (t + ((n - t) >> shift1)) >> shift2
template <typename U>
struct InvariantDivisor {
  static constexpr int kBits = std::numeric_limits<U>::digits;
  U multiplier;
  int shift1, shift2;

  explicit InvariantDivisor(uint32_t d) {
    if (d > std::numeric_limits<U>::max()) {  // every quotient is 0
      multiplier = 0, shift1 = 1, shift2 = kBits - 1;
      return;
    }
    const int log = d <= 1 ? 0 : 32 - std::countl_zero(d - 1);  // ceil(log2 d)
    const auto power = static_cast<unsigned __int128>(1) << log;
    multiplier = static_cast<U>(((power - d) << kBits) / d + 1);  // below 2^kBits, since power < 2 d
    shift1 = log < 1 ? log : 1;
    shift2 = log > 1 ? log - 1 : 0;
  }
};

}  // namespace gatun
