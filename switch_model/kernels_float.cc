#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "switch_model/kernels_float.cc"
// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "switch_model/kernels_inl.h"
// clang-format on

// f32 and f64: reduced in themselves.

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// A machine without any vector instruction set that is supported.
void float_kernel(const ReduceArgs& args) {
  reduce_scalar(args);
}

#else

template <typename T>
struct FloatCodec {
  using Reduced = T;
  using Finish = FloatFinish<T>;
  static constexpr bool kNarrow = false;
  static constexpr size_t kElemBytes = sizeof(T);
  static constexpr int kParts = 1;
  static constexpr int kUnroll = 4;
  static constexpr size_t kPrefetchBytes = 0;
  using Guard = NoGuard;
  template <class State>
  static constexpr bool kFixedInputs = true;

  static HWY_INLINE void load(const uint8_t* from, NoGuard&, Vec<T> (&x)[1]) { x[0] = load_bytes(Tag<T>(), from); }
  static HWY_INLINE void store(const Vec<T> (&x)[1], const Finish& finish, uint8_t* to) {
    store_bytes(Tag<T>(), with_canonical_nan<T>(finish.apply(x[0])), to);
  }
};

void float_kernel(const ReduceArgs& args) {
  switch (args.type) {
    case Type::kF32: return reduce_type<FloatCodec<float> >(args);
    case Type::kF64: return reduce_type<FloatCodec<double> >(args);
    default: return;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gatun {

HWY_EXPORT(float_kernel);
void reduce_float(const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(float_kernel)(args);
}

}  // namespace gatun
#endif
