#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "switch_model/kernels_half.cc"
// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "switch_model/kernels_narrow_inl.h"
// clang-format on

// f16 and bf16: reduced in f32.

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// A machine without any vector instruction set that is supported.
void half_kernel(const ReduceArgs& args) {
  reduce_scalar(args);
}

#else

struct F16Codec : NarrowCodec<F16, uint16_t> {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  static HWY_INLINE Vec<float> load_ordered(const uint8_t* from) {
    return hn::PromoteTo(Tag<float>(), load_bytes(hn::Rebind<hwy::float16_t, Tag<float> >(), from));
  }
  static HWY_INLINE void store_ordered(Vec<float> v, uint8_t* to) {
    const hn::Rebind<hwy::float16_t, Tag<float> > d;
    store_bytes(d, hn::DemoteTo(d, with_canonical_nan<float>(v)), to);
  }
  static HWY_INLINE void load(const uint8_t* from, Vec<float> (&x)[2]) {
    x[0] = load_ordered(from);
    x[1] = load_ordered(from + kPartBytes);
  }
  static HWY_INLINE void store(const Vec<float> (&x)[2], uint8_t* to) {
    store_ordered(x[0], to);
    store_ordered(x[1], to + kPartBytes);
  }
#endif
};

// A bf16 is the upper half of an f32: even elements are shifted into place and odd ones masked, so nothing crosses lanes.
struct BF16Codec : NarrowCodec<BF16, uint16_t> {
  static HWY_INLINE void load(const uint8_t* from, Vec<float> (&x)[2]) {
    const Tag<uint32_t> du;
    const auto pairs = load_bytes(du, from);
    x[0] = hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(pairs));
    x[1] = hn::BitCast(Tag<float>(), hn::And(pairs, hn::Set(du, 0xffff0000u)));
  }
  static HWY_INLINE void store(const Vec<float> (&x)[2], uint8_t* to) {
    store_bytes(Tag<uint32_t>(), hn::Or(narrow<BF16>(x[0]), hn::ShiftLeft<16>(narrow<BF16>(x[1]))), to);
  }
};

void half_kernel(const ReduceArgs& args) {
  switch (args.type) {
    case Type::kF16: return reduce_type<F16Codec>(args);
    case Type::kBF16: return reduce_type<BF16Codec>(args);
    default: return;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gatun {

HWY_EXPORT(half_kernel);
void reduce_half(const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(half_kernel)(args);
}

}  // namespace gatun
#endif
