// Reduction kernels: n contributions in, one result out, in one pass with the sums in registers.
//
// out[i] = in[0][i] op in[1][i] op ... in this order, so the bits depend on the order of the children alone. Narrow floats
// (f16, bf16, f8e4m3, f8e5m2) are widened to f32, reduced there, and rounded once to nearest even when out is final. kAvg is
// a sum that is divided by `divisor` before that last rounding (integers truncate toward zero). f32, f64 and integers reduce
// in their own type; integers wrap. min and max propagate NaN; every NaN that comes out is the canonical quiet one, and
// -0 < +0. f8e4m3 has no infinity: overflow becomes NaN (OCP 8-bit floating point, non-saturating conversion).
//
// reduce() dispatches at run time to the best instruction set (Google Highway); reduce_scalar() is the reference, and both
// give equal bits on every instruction set, whatever rounding or flush-to-zero mode the calling thread has set. Any thread
// may call them at any time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocols/types.h"

namespace gatun {

inline constexpr int kReduceInputsMax = 64;

struct ReduceArgs {
  Type type = Type::kF32;
  Op op = Op::kSum;
  int inputs = 0;                   // 1..kReduceInputsMax; 1 copies or converts
  const void* const* in = nullptr;  // any alignment; one of out's element size may be out itself, else no overlap
  uint64_t partial = 0;             // bit k: in[k] is of partial_type(type), from a switch
  void* out = nullptr;              // any alignment
  bool out_partial = false;         // write partial_type(type), do not divide
  uint32_t divisor = 1;             // kAvg: number of contributions below the root
  size_t elems = 0;
};

void reduce(const ReduceArgs& args);
void reduce_scalar(const ReduceArgs& args);

// The instruction sets of this machine by name, best first, and a way to force one ("" = best again) for the whole process.
// Tests and benchmarks only.
int kernel_targets(const char** names, int names_max);
bool force_kernel_target(const char* name);

}  // namespace gatun
