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
  static constexpr int kUnroll = 4;
  static HWY_INLINE Vec<float> load_ordered(const uint8_t* from) {
    return hn::PromoteTo(Tag<float>(), load_bytes(hn::Rebind<hwy::float16_t, Tag<float> >(), from));
  }
  static HWY_INLINE void store_ordered(Vec<float> v, uint8_t* to) {
    store_numbers(with_canonical_nan<float>(v), to);
  }
  static HWY_INLINE void load(const uint8_t* from, NoGuard&, Vec<float> (&x)[2]) {
    x[0] = load_ordered(from);
    x[1] = load_ordered(from + kPartBytes);
  }
  static HWY_INLINE void store(const Vec<float> (&x)[2], const Finish& finish, uint8_t* to) {
    const auto low = finish.apply(x[0]), high = finish.apply(x[1]);
    if (HWY_LIKELY(hn::AllFalse(Tag<float>(), either_is_nan<float>(low, high)))) {
      store_numbers(low, to);
      store_numbers(high, to + kPartBytes);
    } else {
      store_ordered(low, to);
      store_ordered(high, to + kPartBytes);
    }
  }

 private:
  static HWY_INLINE void store_numbers(Vec<float> v, uint8_t* to) {
    const hn::Rebind<hwy::float16_t, Tag<float> > d;
    store_bytes(d, hn::DemoteTo(d, v), to);
  }
#endif
};

// A bf16 is the upper half of an f32: even elements are shifted into place and odd ones masked, so nothing crosses lanes.
struct BF16Codec : NarrowCodec<BF16, uint16_t> {
  static constexpr int kUnroll = 4;
  static HWY_INLINE void load(const uint8_t* from, NoGuard&, Vec<float> (&x)[2]) {
    const Tag<uint32_t> du;
    auto pairs = load_bytes(du, from);
    keep_loaded(pairs);
    x[0] = hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(pairs));
    x[1] = hn::BitCast(Tag<float>(), hn::And(pairs, hn::Set(du, 0xffff0000u)));
  }
  static HWY_INLINE void store(const Vec<float> (&x)[2], const Finish& finish, uint8_t* to) {
    const Tag<uint32_t> du;
    const Tag<uint16_t> du16;
    const auto even = finish.apply(x[0]), odd = finish.apply(x[1]);
    if (HWY_LIKELY(hn::AllFalse(Tag<float>(), either_is_nan<float>(even, odd)))) {
      const auto low = hn::ShiftRight<16>(rounded(even)), high = rounded(odd);
      store_bytes(du16, hn::OddEven(hn::BitCast(du16, high), hn::BitCast(du16, low)), to);
    } else {
      store_bytes(du, hn::Or(narrow<BF16>(even), hn::ShiftLeft<16>(narrow<BF16>(odd))), to);
    }
  }

 private:
  // The upper half is the nearest bf16, ties to even, of anything but NaN.
  static HWY_INLINE Vec<uint32_t> rounded(Vec<float> v) {
    const Tag<uint32_t> du;
    const auto bits = hn::BitCast(du, v);
#if GATUN_AVX512
    const __mmask16 odd = _mm512_test_epi32_mask(bits.raw, hn::Set(du, 0x10000).raw);
    const auto down = hn::Add(bits, hn::Set(du, 0x7fff));
    return Vec<uint32_t>{_mm512_mask_add_epi32(down.raw, odd, bits.raw, hn::Set(du, 0x8000).raw)};
#else
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
#endif
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
