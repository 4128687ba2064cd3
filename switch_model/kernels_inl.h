// The loops of the reduction kernels, compiled once per instruction set; included by kernels_*.cc through foreach_target.h,
// without a guard.
//
// A Codec turns memory of one element type into vectors of the type that is reduced in and back; a State reduces one vector.
// native_loop() is for inputs and output of the element type itself, and works on whole vectors of memory, whose elements
// the codec may spread over its parts in any order. mixed_loop() is for narrow floats of which some inputs, or the output,
// are f32 partial sums, and works on elements in order. The last, incomplete vector goes through copies on the stack.

#include <cstring>
#include <type_traits>

#include "switch_model/kernels_convert.h"
#include "switch_model/kernels_table.h"

#define GATUN_UNROLL _Pragma("GCC unroll 16")

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
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
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

// --- multiplication of integers, wrapping
// -----------------------------------------------------------------------------------

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
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
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

// --- states: one vector being reduced
// -----------------------------------------------------------------------------------------

template <typename T>
struct SumState {
  static constexpr bool kFixedInputs = true;
  Vec<T> sum;
  HWY_INLINE void first(Vec<T> x) { sum = x; }
  HWY_INLINE void next(Vec<T> x) { sum = hn::Add(sum, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { sum = hn::Add(hn::Add(sum, x), y); }
  HWY_INLINE Vec<T> result() const { return sum; }
};

template <typename T>
struct ProductState {
  static constexpr bool kFixedInputs = false;
  Vec<T> product;
  HWY_INLINE void first(Vec<T> x) { product = x; }
  HWY_INLINE void next(Vec<T> x) { product = multiply<T>(product, x); }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { product = multiply<T>(multiply<T>(product, x), y); }
  HWY_INLINE Vec<T> result() const { return product; }
};

template <typename T, bool kMax>
struct IntegerExtremeState {
  static constexpr bool kFixedInputs = false;
  Vec<T> best;
  HWY_INLINE void first(Vec<T> x) { best = x; }
  HWY_INLINE void next(Vec<T> x) {
    if constexpr (kMax) {
      best = hn::Max(best, x);
    } else {
      best = hn::Min(best, x);
    }
  }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) { next(x), next(y); }
  HWY_INLINE Vec<T> result() const { return best; }
};

// The instruction's answer to NaN and to zeros of both signs differs between instruction sets, so both are kept beside it:
// the sign of a maximum is the AND of all signs, that of a minimum the OR.
template <typename T, bool kMax>
struct FloatExtremeState {
  static constexpr bool kFixedInputs = false;
  Vec<T> best, signs;
  hn::Mask<Tag<T>> nan;
  HWY_INLINE void first(Vec<T> x) { best = signs = x, nan = hn::IsNaN(x); }
  HWY_INLINE void next(Vec<T> x) {
    merge(x);
    signs = both(signs, x);
    nan = hn::Or(nan, hn::IsNaN(x));
  }
  HWY_INLINE void next_two(Vec<T> x, Vec<T> y) {
    merge(x), merge(y);
    signs = both(signs, both(x, y));
    nan = hn::Or(nan, either_is_nan<T>(x, y));
  }
  HWY_INLINE Vec<T> result() const { return hn::IfThenElse(nan, canonical_nan<T>(), hn::CopySign(best, signs)); }

 private:
  HWY_INLINE void merge(Vec<T> x) {
    if constexpr (kMax) {
      best = hn::Max(best, x);
    } else {
      best = hn::Min(best, x);
    }
  }
  static HWY_INLINE Vec<T> both(Vec<T> x, Vec<T> y) {
    if constexpr (kMax) {
      return hn::And(x, y);
    } else {
      return hn::Or(x, y);
    }
  }
};

template <typename T>
using MaxState = std::conditional_t<std::is_integral_v<T>, IntegerExtremeState<T, true>, FloatExtremeState<T, true>>;
template <typename T>
using MinState = std::conditional_t<std::is_integral_v<T>, IntegerExtremeState<T, false>, FloatExtremeState<T, false>>;

// --- loops
// ----------------------------------------------------------------------------------------------------------------------

template <class Codec, class State, int kUnroll>
struct Block {
  static constexpr int kParts = Codec::kParts;
  using V = Vec<typename Codec::Reduced>;
  State states[kUnroll][kParts];

  HWY_INLINE void first(const uint8_t* a) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      Codec::load(a + u * kVecBytes, x);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].first(x[part]);
    }
  }
  HWY_INLINE void next(const uint8_t* a) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      Codec::load(a + u * kVecBytes, x);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].next(x[part]);
    }
  }
  HWY_INLINE void next_two(const uint8_t* a, const uint8_t* b) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts], y[kParts];
      Codec::load(a + u * kVecBytes, x);
      Codec::load(b + u * kVecBytes, y);
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) states[u][part].next_two(x[part], y[part]);
    }
  }
  HWY_INLINE void store(uint8_t* out, const typename Codec::Finish& finish) {
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      V x[kParts];
      GATUN_UNROLL for (int part = 0; part < kParts; ++part) x[part] = finish.apply(states[u][part].result());
      Codec::store(x, out + u * kVecBytes);
    }
  }
};

// Each reduces [at, bytes) in steps of kUnroll vectors and returns where the rest begins.
template <class Codec, class State, int kUnroll>
HWY_INLINE size_t native_loop(const uint8_t* const* in, int inputs, uint8_t* out, size_t at, size_t bytes,
                              const typename Codec::Finish& finish) {
  for (; at + kUnroll * kVecBytes <= bytes; at += kUnroll * kVecBytes) {
    Block<Codec, State, kUnroll> block;
    block.first(in[0] + at);
    int k = 1;
    for (; k + 2 <= inputs; k += 2) block.next_two(in[k] + at, in[k + 1] + at);
    if (k < inputs) block.next(in[k] + at);
    block.store(out + at, finish);
  }
  return at;
}

// The same for an even number of inputs that is known here: nothing but loads, conversions and sums remains.
template <class Codec, class State, int kUnroll, int kInputs>
HWY_INLINE size_t fixed_loop(const uint8_t* const* in, uint8_t* out, size_t at, size_t bytes,
                             const typename Codec::Finish& finish) {
  const uint8_t* from[kInputs];  // a copy that stores to out cannot change
  GATUN_UNROLL for (int k = 0; k < kInputs; ++k) from[k] = in[k];
  for (; at + kUnroll * kVecBytes <= bytes; at += kUnroll * kVecBytes) {
    Block<Codec, State, kUnroll> block;
    block.first(from[0] + at);
    GATUN_UNROLL for (int k = 1; k < kInputs - 1; k += 2) block.next_two(from[k] + at, from[k + 1] + at);
    block.next(from[kInputs - 1] + at);
    block.store(out + at, finish);
  }
  return at;
}

template <class Codec, class State>
HWY_NOINLINE void reduce_native(const ReduceArgs& args, const typename Codec::Finish& finish) {
  const size_t bytes = args.elems * Codec::kElemBytes;
  const uint8_t* in[kReduceInputsMax];
  for (int k = 0; k < args.inputs; ++k) in[k] = static_cast<const uint8_t*>(args.in[k]);
  auto* out = static_cast<uint8_t*>(args.out);

  size_t at = 0;
  if constexpr (State::kFixedInputs && Codec::kUnrollFixed > 0) {
    constexpr int kUnroll = Codec::kUnrollFixed;
    switch (args.inputs) {
      case 2: at = fixed_loop<Codec, State, kUnroll, 2>(in, out, at, bytes, finish); break;
      case 4: at = fixed_loop<Codec, State, kUnroll, 4>(in, out, at, bytes, finish); break;
      case 8: at = fixed_loop<Codec, State, kUnroll, 8>(in, out, at, bytes, finish); break;
      case 16: at = fixed_loop<Codec, State, kUnroll, 16>(in, out, at, bytes, finish); break;
    }
  }
  if constexpr (Codec::kUnroll > 1) at = native_loop<Codec, State, Codec::kUnroll>(in, args.inputs, out, at, bytes, finish);

  // One vector at a time; the last, incomplete one through copies.
  alignas(64) uint8_t copies[kReduceInputsMax][kVecBytes];
  alignas(64) uint8_t result[kVecBytes];
  uint8_t* to = out;
  while (at < bytes) {
    const size_t rest = bytes - at;
    size_t end = bytes;
    if (rest < kVecBytes) {
      for (int k = 0; k < args.inputs; ++k) {
        std::memset(copies[k], 0, kVecBytes);
        std::memcpy(copies[k], in[k] + at, rest);
        in[k] = copies[k];
      }
      to = result;
      at = 0;
      end = kVecBytes;
    }
    at = native_loop<Codec, State, 1>(in, args.inputs, to, at, end, finish);
    if (to == result) {
      std::memcpy(out + bytes - rest, result, rest);
      return;
    }
  }
}

// As native_loop(), but at and elems count elements, and each input says which type it is of.
template <class Codec, class State, int kUnroll>
HWY_INLINE size_t mixed_loop(const ReduceArgs& args, const uint8_t* const* in, uint8_t* out, size_t at, size_t elems,
                             const typename Codec::Finish& finish) {
  constexpr size_t kLanes = kVecBytes / sizeof(float);
  const size_t out_bytes = args.out_partial ? sizeof(float) : Codec::kElemBytes;
  for (; at + kUnroll * kLanes <= elems; at += kUnroll * kLanes) {
    State states[kUnroll];
    for (int k = 0; k < args.inputs; ++k) {
      const bool partial = (args.partial >> k) & 1;
      const size_t bytes = partial ? sizeof(float) : Codec::kElemBytes;
      Vec<float> x[kUnroll];
      if (partial) {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) x[u] = load_bytes(Tag<float>(), in[k] + (at + u * kLanes) * bytes);
      } else {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) x[u] = Codec::load_ordered(in[k] + (at + u * kLanes) * bytes);
      }
      if (k == 0) {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) states[u].first(x[u]);
      } else {
        GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) states[u].next(x[u]);
      }
    }
    GATUN_UNROLL for (int u = 0; u < kUnroll; ++u) {
      uint8_t* to = out + (at + u * kLanes) * out_bytes;
      if (args.out_partial) {
        store_bytes(Tag<float>(), with_canonical_nan<float>(states[u].result()), to);
      } else {
        Codec::store_ordered(finish.apply(states[u].result()), to);
      }
    }
  }
  return at;
}

template <class Codec, class State>
HWY_NOINLINE void reduce_mixed(const ReduceArgs& args, const typename Codec::Finish& finish) {
  constexpr size_t kLanes = kVecBytes / sizeof(float);
  const uint8_t* in[kReduceInputsMax];
  for (int k = 0; k < args.inputs; ++k) in[k] = static_cast<const uint8_t*>(args.in[k]);
  auto* out = static_cast<uint8_t*>(args.out);

  size_t at = mixed_loop<Codec, State, 4>(args, in, out, 0, args.elems, finish);
  at = mixed_loop<Codec, State, 1>(args, in, out, at, args.elems, finish);
  const size_t rest = args.elems - at;
  if (rest == 0) return;
  alignas(64) uint8_t copies[kReduceInputsMax][kVecBytes];
  alignas(64) uint8_t result[kVecBytes];
  for (int k = 0; k < args.inputs; ++k) {
    const size_t bytes = (args.partial >> k) & 1 ? sizeof(float) : Codec::kElemBytes;
    std::memset(copies[k], 0, kVecBytes);
    std::memcpy(copies[k], in[k] + at * bytes, rest * bytes);
    in[k] = copies[k];
  }
  mixed_loop<Codec, State, 1>(args, in, result, 0, kLanes, finish);
  const size_t out_bytes = args.out_partial ? sizeof(float) : Codec::kElemBytes;
  std::memcpy(out + at * out_bytes, result, rest * out_bytes);
}

// --- finishing and entry
// -----------------------------------------------------------------------------------------------------

template <typename T>
struct FloatFinish {
  bool divide;
  T divisor;
  explicit FloatFinish(const ReduceArgs& args)
      : divide(args.op == Op::kAvg && !args.out_partial), divisor(static_cast<T>(args.divisor)) {}
  HWY_INLINE Vec<T> apply(Vec<T> v) const { return divide ? hn::Div(v, hn::Set(Tag<T>(), divisor)) : v; }
};

template <class Codec, template <typename> class State>
HWY_INLINE void reduce_codec(const ReduceArgs& args) {
  const typename Codec::Finish finish(args);
  if constexpr (Codec::kNarrow) {
    const uint64_t all = ~uint64_t{0} >> (64 - args.inputs);
    if (args.out_partial || (args.partial & all)) return reduce_mixed<Codec, State<typename Codec::Reduced>>(args, finish);
  }
  reduce_native<Codec, State<typename Codec::Reduced>>(args, finish);
}

template <class Codec>
HWY_INLINE void reduce_type(const ReduceArgs& args) {
  switch (args.op) {
    case Op::kSum:
    case Op::kAvg: return reduce_codec<Codec, SumState>(args);
    case Op::kProd: return reduce_codec<Codec, ProductState>(args);
    case Op::kMax: return reduce_codec<Codec, MaxState>(args);
    case Op::kMin: return reduce_codec<Codec, MinState>(args);
  }
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();
