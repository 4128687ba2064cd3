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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

// Both formats become f16 by moving bits within 16-bit lanes, even and odd bytes apart, and f16 becomes f32 by an
// instruction. The upper byte of an f16 is an f8e5m2. An f8e4m3 has one exponent bit less, so its f16 is 2^8 times smaller,
// which scales all sums exactly; its NaN has no place there, and a guard looks for it.
template <class Format>
struct ViaF16Codec : NarrowCodec<Format, uint8_t> {
  using Base = NarrowCodec<Format, uint8_t>;
  using Finish = FloatFinish<float>;
  using Fallback = Base;
  static constexpr bool kScaled = Format::kMan == 3;
  static constexpr int kUnroll = GATUN_AVX512 ? 2 : 1;

  struct NanGuard {
#if GATUN_AVX512
    __mmask64 numbers;
    HWY_INLINE void start() {
      numbers = ~uint64_t{0};
    }
    HWY_INLINE void look(Vec<uint8_t> bytes) {
      const Tag<uint8_t> d;
      const auto next = hn::Add(bytes, hn::Set(d, 1));  // of NaN, and of nothing else, 0x80 or 0
      numbers = _mm512_mask_test_epi8_mask(numbers, next.raw, hn::Set(d, 0x7f).raw);
    }
    HWY_INLINE bool clear() const {
      return numbers == ~uint64_t{0};
    }
#else
    Vec<uint8_t> nans;
    HWY_INLINE void start() {
      nans = hn::Zero(Tag<uint8_t>());
    }
    HWY_INLINE void look(Vec<uint8_t> bytes) {
      const Tag<uint8_t> d;
      const auto all = hn::Set(d, 0x7f);
      nans = hn::Or(nans, hn::VecFromMask(d, hn::Eq(hn::And(bytes, all), all)));
    }
    HWY_INLINE bool clear() const {
      return hn::AllTrue(Tag<uint8_t>(), hn::Eq(nans, hn::Zero(Tag<uint8_t>())));
    }
#endif
  };
  using Guard = std::conditional_t<kScaled, NanGuard, NoGuard>;

  // Parts: lower and upper half of the even bytes, lower and upper half of the odd ones.
  static HWY_INLINE void load(const uint8_t* from, Guard& guard, Vec<float> (&x)[4]) {
    const Tag<uint16_t> d16;
    auto pairs = load_bytes(d16, from);
    keep_loaded(pairs);
    if constexpr (kScaled) {
      guard.look(hn::BitCast(Tag<uint8_t>(), pairs));
      to_f32(with_shorter_exponent(hn::ShiftLeft<8>(pairs)), x);
      to_f32(with_shorter_exponent(pairs), x + 2);
    } else {
      to_f32(hn::ShiftLeft<8>(pairs), x);
      to_f32(hn::And(pairs, hn::Set(d16, 0xff00)), x + 2);
    }
  }

  static HWY_INLINE void store(const Vec<float> (&x)[4], const Finish& finish, uint8_t* to) {
    const Tag<float> d;
    const Tag<uint8_t> d8;
#if GATUN_AVX512
    const auto nan = hn::Or(either_is_nan<float>(x[0], x[1]), either_is_nan<float>(x[2], x[3]));
    if (HWY_LIKELY(!finish.divides() && hn::AllFalse(d, nan))) return store_sums(x, to);
#endif
    Vec<uint32_t> bits[4];
    GATUN_UNROLL for (int part = 0; part < 4; ++part) {
      const auto value = kScaled ? hn::Mul(x[part], hn::Set(d, 256.0f)) : x[part];
      bits[part] = narrow<Format>(finish.apply(value));
    }
    const auto even = to_16(bits[0], bits[1]), odd = hn::ShiftLeft<8>(to_16(bits[2], bits[3]));
    store_bytes(d8, hn::BitCast(d8, hn::Or(even, odd)), to);
  }

 private:
  // The upper byte as f8e4m3 to f16; the lower byte vanishes.
  static HWY_INLINE Vec<uint16_t> with_shorter_exponent(Vec<uint16_t> v) {
    const Tag<uint16_t> d16;
    const Tag<int16_t> di16;
    return hn::And(hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(di16, v))), hn::Set(d16, 0xbf80));
  }
  static HWY_INLINE void to_f32(Vec<uint16_t> halves, Vec<float>* x) {
    const hn::Repartition<hwy::float16_t, Tag<uint16_t> > d;
    const hn::Half<decltype(d)> dh;
    const auto v = hn::BitCast(d, halves);
    x[0] = hn::PromoteTo(Tag<float>(), hn::LowerHalf(dh, v));
    x[1] = hn::PromoteTo(Tag<float>(), hn::UpperHalf(dh, v));
  }
  static HWY_INLINE Vec<uint16_t> to_16(Vec<uint32_t> low, Vec<uint32_t> high) {
    const Tag<uint16_t> d16;
    const hn::Half<Tag<uint16_t> > dh;
    const Tag<int32_t> di;
    return hn::Combine(d16, hn::DemoteTo(dh, hn::BitCast(di, high)), hn::DemoteTo(dh, hn::BitCast(di, low)));
  }

#if GATUN_AVX512
  // For numbers that are sums of f8, or one of them. Such a number is f16 at once where f16 is denormal; elsewhere its
  // lowest bit in f16 is made to say whether anything lies below (rounding to odd), so that rounding from f16 to f8 rounds
  // the whole.
  static HWY_INLINE void store_sums(const Vec<float> (&x)[4], uint8_t* to) {
    const auto even = rounded(_mm512_inserti64x4(_mm512_castsi256_si512(odd_f16(x[0])), odd_f16(x[1]), 1));
    const auto odd = rounded(_mm512_inserti64x4(_mm512_castsi256_si512(odd_f16(x[2])), odd_f16(x[3]), 1));
    __m512i bytes = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaaull, _mm512_srli_epi16(even, 8), odd);
    if constexpr (kScaled) {  // the one NaN
      const __m512i all = _mm512_set1_epi8(-1);
      bytes = _mm512_mask_blend_epi8(_mm512_cmpeq_epi8_mask(bytes, all), bytes, _mm512_set1_epi8(0x7f));
    }
    _mm512_storeu_si512(to, bytes);
  }
  static HWY_INLINE __m256i odd_f16(Vec<float> v) {
    const __m512i bits = _mm512_castps_si512(v.raw), below = _mm512_set1_epi32(0x1fff);
    const __m512i carry = _mm512_add_epi32(_mm512_and_si512(bits, below), below);
    const __m512i odd = _mm512_ternarylogic_epi32(bits, carry, _mm512_set1_epi32(0x2000), 0xf8);  // bits | (carry & 0x2000)
    return _mm512_cvtps_ph(_mm512_castsi512_ps(odd), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  }
  // f16 in 16-bit lanes to f8 in the upper bytes; the lower bytes are anything.
  static HWY_INLINE __m512i rounded(__m512i halves) {
    constexpr int kCut = kScaled ? 7 : 8;
    const __mmask32 odd = _mm512_test_epi16_mask(halves, _mm512_set1_epi16(1 << kCut));
    const __m512i down = _mm512_add_epi16(halves, _mm512_set1_epi16((1 << (kCut - 1)) - 1));
    const __m512i result = _mm512_mask_add_epi16(down, odd, halves, _mm512_set1_epi16(1 << (kCut - 1)));
    if constexpr (!kScaled) return result;
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    const __m512i magnitude =
        _mm512_min_epu16(_mm512_andnot_si512(sign, result), _mm512_set1_epi16(E4M3::kTooLarge << kCut));
    return _mm512_ternarylogic_epi32(sign, result, _mm512_slli_epi16(magnitude, 1),
                                     0xca);  // sign of result, rest of magnitude
  }
#endif
};

template <class Format>
using SumCodec = ViaF16Codec<Format>;

#else

template <class Format>
using SumCodec = NarrowCodec<Format, uint8_t>;

#endif

template <class Format>
HWY_INLINE void reduce_float8_type(const ReduceArgs& args) {
  switch (args.op) {
    case Op::kSum:
    case Op::kAvg: return reduce_codec<SumCodec<Format>, SumState>(args);
    case Op::kProd: return reduce_codec<NarrowCodec<Format, uint8_t>, ProductState>(args);
    case Op::kMax: return reduce_codec<SumCodec<Format>, MaxState>(args);
    case Op::kMin: return reduce_codec<SumCodec<Format>, MinState>(args);
  }
}

void float8_kernel(const ReduceArgs& args) {
  if (args.type == Type::kE4M3) return reduce_float8_type<E4M3>(args);
  return reduce_float8_type<E5M2>(args);
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
