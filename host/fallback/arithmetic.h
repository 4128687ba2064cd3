// Arithmetic: arrays added without a switch, with the bits that a switch gives (element_arithmetic.h defines both).
//
// Elements are loaded into an accumulator of partial_type(type), combined there, and stored once: divided if the operator is
// an average, NaN made canonical, rounded. Any alignment. The caller holds a FloatEnvironment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocols/types.h"

namespace gatun {

struct Arithmetic {
  size_t elem_bytes = 0;
  size_t accumulator_bytes = 0;                                   // of one element
  void (*load)(void* accumulator, const void* in, size_t elems);  // may be one array if the sizes are equal
  void (*add)(void* accumulator, const void* in, size_t elems);   // accumulator = accumulator op in
  // out = a op b, all of the accumulator's type; out may be a or b.
  void (*combine)(void* out, const void* a, const void* b, size_t elems);
  void (*store)(void* out, const void* accumulator, size_t elems, uint32_t divisor);  // as load

  static const Arithmetic& of(Type type, Op op);
};

}  // namespace gatun
