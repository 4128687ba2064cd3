#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "switch_model/kernels_float8.cc"
// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "switch_model/kernels_narrow_inl.h"
// clang-format on

// f8e4m3 and f8e5m2: reduced in f32.

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// A machine without any vector instruction set that is supported.
void float8_kernel(const ReduceArgs& args) {
  reduce_scalar(args);
}

#else

using E4M3Codec = NarrowCodec<E4M3, uint8_t>;
using E5M2Codec = NarrowCodec<E5M2, uint8_t>;

void float8_kernel(const ReduceArgs& args) {
  switch (args.type) {
    case Type::kE4M3: return reduce_type<E4M3Codec>(args);
    case Type::kE5M2: return reduce_type<E5M2Codec>(args);
    default: return;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gatun {

HWY_EXPORT(float8_kernel);
void reduce_float8(const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(float8_kernel)(args);
}

}  // namespace gatun
#endif
