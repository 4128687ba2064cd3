// What the operators do to one element: the definition that the kernels of the switch and the ways without one share.
//
// Integers wrap, and their average truncates toward zero. min and max propagate NaN, and -0 < +0. Narrow floats are computed
// in f32 (narrow_floats.h). The bits are the same everywhere if the caller holds a FloatEnvironment, makes NaN canonical at
// the end, and is built without contraction into fused operations.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "protocols/types.h"

namespace gatun {

template <typename T>
T apply(Op op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // narrow types become int, in which nothing here overflows before U wraps it
    const uint64_t wide_a = static_cast<U>(a), wide_b = static_cast<U>(b);
    switch (op) {
      case Op::kSum:
      case Op::kAvg: return static_cast<T>(static_cast<U>(wide_a + wide_b));
      case Op::kProd: return static_cast<T>(static_cast<U>(wide_a * wide_b));
      case Op::kMax: return a > b ? a : b;
      case Op::kMin: return a < b ? a : b;
    }
    return a;
  } else {
    switch (op) {
      case Op::kSum:
      case Op::kAvg: return a + b;
      case Op::kProd: return a * b;
      case Op::kMax:
      case Op::kMin: break;
    }
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    const bool a_less = a < b || (a == b && std::signbit(a));
    return a_less == (op == Op::kMin) ? a : b;
  }
}

template <typename T>
T divide(T sum, uint32_t divisor) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return sum / divisor;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(divisor));
  } else {
    return sum / static_cast<T>(divisor);
  }
}

}  // namespace gatun
