// What the reduction kernels do with vectors, per instruction set and without a guard: unaligned memory, the operators as
// states of one vector that is being reduced, and what is done to a result before it is stored.

#include <hwy/cache_control.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "protocols/narrow_floats.h"
#include "switch_model/kernels_table.h"

#define GATUN_UNROLL _Pragma("GCC unroll 16")

// The 512-bit instructions of x86 that Highway has no name for.
#undef GATUN_AVX512
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define GATUN_AVX512 1
#else
#define GATUN_AVX512 0
#endif

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<T>;
template <typename T>
using Vec = hn::Vec<Tag<T>>;

inline constexpr size_t kVecBytes = HWY_MAX_BYTES;

// Memory has any alignment, so it is read and written as bytes.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const uint8_t* from) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), from));
}
template <class D>
HWY_INLINE void store_bytes(D d, hn::Vec<D> v, uint8_t* to) {
  const hn::Repartition<uint8_t, decltype(d)> d8;
  hn::StoreU(hn::BitCast(d8, v), d8, to);
}

// For a loaded vector that is used twice: the compiler would otherwise read memory twice, and reading is what these loops
// wait for.
template <class V>
HWY_INLINE void keep_loaded(V& v) {
#if GATUN_AVX512
  auto raw = v.raw;
  asm("" : "+v"(raw));
  v.raw = raw;
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
  auto raw = v.raw;
  asm("" : "+x"(raw));
  v.raw = raw;
#else
  (void)v;
#endif
}

template <typename T>
HWY_INLINE Vec<T> canonical_nan() {
  if constexpr (sizeof(T) == 4) {
    return hn::BitCast(Tag<T>(), hn::Set(Tag<uint32_t>(), kNanF32));
  } else {
    return hn::BitCast(Tag<T>(), hn::Set(Tag<uint64_t>(), kNanF64));
  }
}
template <typename T>
HWY_INLINE Vec<T> with_canonical_nan(Vec<T> v) {
  return hn::IfThenElse(hn::IsNaN(v), canonical_nan<T>(), v);
}

// Lanes where a or b is NaN: one comparison where the instruction set has it.
template <typename T>
HWY_INLINE hn::Mask<Tag<T>> either_is_nan(Vec<T> a, Vec<T> b) {
#if GATUN_AVX512
  if constexpr (sizeof(T) == 4) {
    return hn::Mask<Tag<T>>{_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_UNORD_Q)};
  } else {
    return hn::Mask<Tag<T>>{_mm512_cmp_pd_mask(a.raw, b.raw, _CMP_UNORD_Q)};
  }
#elif HWY_TARGET == HWY_AVX2 && HWY_ARCH_X86
  if constexpr (sizeof(T) == 4) {
    return hn::Mask<Tag<T>>{_mm256_cmp_ps(a.raw, b.raw, _CMP_UNORD_Q)};
  } else {
    return hn::Mask<Tag<T>>{_mm256_cmp_pd(a.raw, b.raw, _CMP_UNORD_Q)};
  }
#else
  return hn::Or(hn::IsNaN(a), hn::IsNaN(b));
#endif
}

template <typename T>
HWY_INLINE Vec<T> multiply(Vec<T> a, Vec<T> b) {
  if constexpr (sizeof(T) == 1) {  // in 16-bit lanes, even and odd bytes apart
    const Tag<uint16_t> d16;
    const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
    const auto low = hn::Set(d16, 0x00ff), high = hn::Set(d16, 0xff00);
    const auto even = hn::And(hn::Mul(a16, b16), low);
    const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::And(b16, high));
    return hn::BitCast(Tag<T>(), hn::Or(even, odd));
  } else if constexpr (sizeof(T) == 8 && std::is_integral_v<T>) {
#if GATUN_AVX512
    return Vec<T>{_mm512_mullo_epi64(a.raw, b.raw)};
#else
    const Tag<uint32_t> d32;
    const Tag<uint64_t> d64;
    const auto a_low = hn::BitCast(d32, a), b_low = hn::BitCast(d32, b);
    const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, a)));
    const auto b_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, b)));
    const auto cross = hn::Add(hn::MulEven(a_high, b_low), hn::MulEven(a_low, b_high));
    return hn::BitCast(Tag<T>(), hn::Add(hn::MulEven(a_low, b_low), hn::ShiftLeft<32>(cross)));
#endif
  } else {
    return hn::Mul(a, b);
  }
}

// --- states ---

template <typename T>
struct SumState {
  Vec<T> sum;
  HWY_INLINE void first(Vec<T> x) { sum = x; }
  HWY_INLINE void first_two(Vec<T> x, Vec<T> y) { sum = hn::Add(x, y); }
  HWY_INLINE void next(Vec<T> x) { sum = hn::Add(sum, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { sum = hn::Add(hn::Add(sum, x), y); }
  HWY_INLINE Vec<T> result() const { return sum; }
};

template <typename T>
struct ProductState {
  Vec<T> product;
  HWY_INLINE void first(Vec<T> x) { product = x; }
  HWY_INLINE void first_two(Vec<T> x, Vec<T> y) { product = multiply<T>(x, y); }
  HWY_INLINE void next(Vec<T> x) { product = multiply<T>(product, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { product = multiply<T>(multiply<T>(product, x), y); }
  HWY_INLINE Vec<T> result() const { return product; }
};

template <typename T, bool kMax>
HWY_INLINE Vec<T> extreme(Vec<T> x, Vec<T> y) {
  if constexpr (kMax) {
    return hn::Max(x, y);
  } else {
    return hn::Min(x, y);
  }
}

template <typename T, bool kMax>
struct IntegerExtremeState {
  Vec<T> best;
  HWY_INLINE void first(Vec<T> x) { best = x; }
  HWY_INLINE void first_two(Vec<T> x, Vec<T> y) { best = extreme<T, kMax>(x, y); }
  HWY_INLINE void next(Vec<T> x) { best = extreme<T, kMax>(best, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { next(extreme<T, kMax>(x, y)); }
  HWY_INLINE Vec<T> result() const { return best; }
};

// NaN is looked for beside the comparison, so the order of comparisons is free: two new inputs are compared with each other
// first, which halves the chain of dependent instructions.
#if GATUN_AVX512

// The range instruction orders zeros by sign.
template <typename T, bool kMax>
struct FloatExtremeState {
  using Ordered = std::conditional_t<sizeof(T) == 4, __mmask16, __mmask8>;
  Vec<T> best;
  Ordered ordered;  // lanes that have not seen a NaN
  HWY_INLINE void first(Vec<T> x) { best = x, ordered = both_ordered(static_cast<Ordered>(-1), x, x); }
  HWY_INLINE void first_two(Vec<T> x, Vec<T> y) {
    keep_loaded(x), keep_loaded(y);
    best = range(x, y), ordered = both_ordered(static_cast<Ordered>(-1), x, y);
  }
  HWY_INLINE void next(Vec<T> x) { best = range(best, x), ordered = both_ordered(ordered, x, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) {
    keep_loaded(x), keep_loaded(y);
    best = range(best, range(x, y)), ordered = both_ordered(ordered, x, y);
  }
  HWY_INLINE Vec<T> result() const { return hn::IfThenElse(hn::Mask<Tag<T>>{ordered}, best, canonical_nan<T>()); }

 private:
  static HWY_INLINE Vec<T> range(Vec<T> x, Vec<T> y) {
    constexpr int kChoice = kMax ? 5 : 4;  // maximum or minimum, with the sign of the chosen one
    if constexpr (sizeof(T) == 4) {
      return Vec<T>{_mm512_range_ps(x.raw, y.raw, kChoice)};
    } else {
      return Vec<T>{_mm512_range_pd(x.raw, y.raw, kChoice)};
    }
  }
  static HWY_INLINE Ordered both_ordered(Ordered lanes, Vec<T> x, Vec<T> y) {
    if constexpr (sizeof(T) == 4) {
      return _mm512_mask_cmp_ps_mask(lanes, x.raw, y.raw, _CMP_ORD_Q);
    } else {
      return _mm512_mask_cmp_pd_mask(lanes, x.raw, y.raw, _CMP_ORD_Q);
    }
  }
};

#else

// Instruction sets differ in which of two zeros they choose, so signs are kept apart as well: the sign of a maximum is the
// AND of all signs, that of a minimum the OR.
template <typename T, bool kMax>
struct FloatExtremeState {
  Vec<T> best, signs;
  hn::Mask<Tag<T>> nan;
  HWY_INLINE void first(Vec<T> x) { best = signs = x, nan = hn::IsNaN(x); }
  HWY_INLINE void first_two(Vec<T> x, Vec<T> y) {
    best = extreme<T, kMax>(x, y);
    signs = both(x, y);
    nan = either_is_nan<T>(x, y);
  }
  HWY_INLINE void next(Vec<T> x) {
    best = extreme<T, kMax>(best, x);
    signs = both(signs, x);
    nan = hn::Or(nan, hn::IsNaN(x));
  }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) {
    best = extreme<T, kMax>(best, extreme<T, kMax>(x, y));
    signs = both(signs, both(x, y));
    nan = hn::Or(nan, either_is_nan<T>(x, y));
  }
  HWY_INLINE Vec<T> result() const { return hn::IfThenElse(nan, canonical_nan<T>(), hn::CopySign(best, signs)); }

 private:
  static HWY_INLINE Vec<T> both(Vec<T> x, Vec<T> y) {
    if constexpr (kMax) {
      return hn::And(x, y);
    } else {
      return hn::Or(x, y);
    }
  }
};

#endif

template <typename T>
using MaxState = std::conditional_t<std::is_integral_v<T>, IntegerExtremeState<T, true>, FloatExtremeState<T, true>>;
template <typename T>
using MinState = std::conditional_t<std::is_integral_v<T>, IntegerExtremeState<T, false>, FloatExtremeState<T, false>>;

// --- finishing ---

// Divides an average. A power of two is an exact reciprocal. Other divisors below 2^20 go by reciprocal and one correction
// with exact remainder, which is the correctly rounded quotient where nothing is denormal (Markstein 1990; with so few bits
// in the divisor no quotient lies within the error of a rounding boundary); a vector with anything else in it is divided.
template <typename T>
class FloatFinish {
 public:
  explicit FloatFinish(const ReduceArgs& args) : divisor_(static_cast<T>(args.divisor)), reciprocal_(T{1} / divisor_) {
    if (args.op != Op::kAvg || args.out_partial) return;
    if (std::has_single_bit(args.divisor)) {
      how_ = kExactReciprocal;
    } else {
      how_ = HWY_NATIVE_FMA && sizeof(T) == 4 && args.divisor < (1u << 20) ? kCorrected : kDivide;
    }
  }

  HWY_INLINE Vec<T> apply(Vec<T> v) const {
    const Tag<T> d;
    if (how_ == kNothing) return v;
    if (how_ == kExactReciprocal) return hn::Mul(v, hn::Set(d, reciprocal_));
#if HWY_NATIVE_FMA
    if constexpr (sizeof(T) == 4) {
      if (how_ == kCorrected && all_correctable(v)) {
        const auto reciprocal = hn::Set(d, reciprocal_);
        const auto q = hn::Mul(v, reciprocal);
        // Its negative, so that zeros keep their sign.
        const auto remainder = hn::MulSub(q, hn::Set(d, divisor_), v);
        return hn::NegMulAdd(remainder, reciprocal, q);
      }
    }
#endif
    return hn::Div(v, hn::Set(d, divisor_));
  }
  bool divides() const {
    return how_ != kNothing;
  }

 private:
  enum How { kNothing, kExactReciprocal, kCorrected, kDivide };

  // Every lane is zero, or finite and at least 2^-100.
  static HWY_INLINE bool all_correctable(Vec<T> v) {
#if GATUN_AVX512
    // Without the sign bit, and moved up so that infinity and NaN wrap around to below the denormals.
    const Tag<uint32_t> du;
    const auto doubled = hn::Add(hn::BitCast(du, v), hn::BitCast(du, v));
    const auto moved = hn::Add(doubled, hn::Set(du, 0x01000000));
    const __mmask16 nonzero = _mm512_test_epi32_mask(doubled.raw, doubled.raw);
    return _mm512_mask_cmplt_epu32_mask(nonzero, moved.raw, hn::Set(du, 0x01000000 + 2 * kSmallest).raw) == 0;
#else
    const Tag<int32_t> di;
    const auto magnitude = hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff));
    const auto above = hn::Gt(magnitude, hn::Set(di, static_cast<int32_t>(kSmallest) - 1));
    const auto normal = hn::And(above, hn::Lt(magnitude, hn::Set(di, 0x7f800000)));
    return hn::AllTrue(di, hn::Or(normal, hn::Eq(magnitude, hn::Zero(di))));
#endif
  }

  static constexpr uint32_t kSmallest = (127 - 100) << 23;

  How how_ = kNothing;
  T divisor_, reciprocal_;
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();
