#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "switch_model/kernels_integer.cc"
// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "switch_model/kernels_inl.h"
// clang-format on

// Integers: reduced in themselves, wrapping; an average truncates toward zero.

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

// A machine without any vector instruction set that is supported.
void integer_kernel(const ReduceArgs& args) {
  reduce_scalar(args);
}

#else

// The upper half of the product, lane by lane.
template <typename U>
HWY_INLINE Vec<U> multiply_high(Vec<U> a, Vec<U> b) {
  const Tag<U> d;
  if constexpr (sizeof(U) == 1) {
    const Tag<uint16_t> d16;
    const auto low = hn::Set(d16, 0x00ff);
    const auto a16 = hn::BitCast(d16, a), b16 = hn::And(hn::BitCast(d16, b), low);  // all lanes of b are equal
    const auto even = hn::ShiftRight<8>(hn::Mul(hn::And(a16, low), b16));
    const auto odd = hn::AndNot(low, hn::Mul(hn::ShiftRight<8>(a16), b16));
    return hn::BitCast(d, hn::Or(even, odd));
  } else if constexpr (sizeof(U) == 4) {
    const Tag<uint64_t> d64;
    const auto a_odd = hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a)));
    const auto even = hn::BitCast(d, hn::ShiftRight<32>(hn::MulEven(a, b)));
    return hn::OddEven(hn::BitCast(d, hn::MulEven(a_odd, b)), even);
  } else {
    const Tag<uint32_t> d32;
    const auto mask = hn::Set(d, 0xffffffffu);
    const auto a_low = hn::BitCast(d32, a), a_high = hn::BitCast(d32, hn::ShiftRight<32>(a));
    const auto b_low = hn::BitCast(d32, b), b_high = hn::BitCast(d32, hn::ShiftRight<32>(b));
    const auto low = hn::ShiftRight<32>(hn::MulEven(a_low, b_low));
    const auto cross1 = hn::Add(hn::MulEven(a_high, b_low), low);
    const auto cross2 = hn::Add(hn::MulEven(a_low, b_high), hn::And(cross1, mask));
    const auto high = hn::Add(hn::MulEven(a_high, b_high), hn::ShiftRight<32>(cross1));
    return hn::Add(high, hn::ShiftRight<32>(cross2));
  }
}

template <typename T>
struct IntegerFinish {
  using U = std::make_unsigned_t<T>;
  bool divide;
  InvariantDivisor<U> divisor;
  explicit IntegerFinish(const ReduceArgs& args) : divide(args.op == Op::kAvg && !args.out_partial), divisor(args.divisor) {}
  HWY_INLINE Vec<T> apply(Vec<T> v) const {
    if (!divide) return v;
    if constexpr (std::is_unsigned_v<T>) {
      return quotient(v);
    } else {  // of the magnitude, since it truncates; the smallest number's magnitude is right as unsigned
      const Tag<T> d;
      const Tag<U> du;
      const auto negative = hn::VecFromMask(d, hn::Lt(v, hn::Zero(d)));
      const auto magnitude = hn::Sub(hn::Xor(v, negative), negative);
      const auto q = hn::BitCast(d, quotient(hn::BitCast(du, magnitude)));
      return hn::Sub(hn::Xor(q, negative), negative);
    }
  }

 private:
  HWY_INLINE Vec<U> quotient(Vec<U> n) const {
    const auto t = multiply_high<U>(n, hn::Set(Tag<U>(), divisor.multiplier));
    const auto halves = hn::ShiftRightSame(hn::Sub(n, t), divisor.shift1);
    return hn::ShiftRightSame(hn::Add(t, halves), divisor.shift2);
  }
};

template <typename T>
struct IntegerCodec {
  using Reduced = T;
  using Finish = IntegerFinish<T>;
  static constexpr bool kNarrow = false;
  static constexpr size_t kElemBytes = sizeof(T);
  static constexpr int kParts = 1;
  static constexpr int kUnroll = 4;
  static constexpr size_t kPrefetchBytes = 0;
  using Guard = NoGuard;
  template <class State>
  static constexpr bool kFixedInputs = std::is_same_v<State, SumState<T> >;

  static HWY_INLINE void load(const uint8_t* from, NoGuard&, Vec<T> (&x)[1]) { x[0] = load_bytes(Tag<T>(), from); }
  static HWY_INLINE void store(const Vec<T> (&x)[1], const Finish& finish, uint8_t* to) {
    store_bytes(Tag<T>(), finish.apply(x[0]), to);
  }
};

void integer_kernel(const ReduceArgs& args) {
  switch (args.type) {
    case Type::kI8: return reduce_type<IntegerCodec<int8_t> >(args);
    case Type::kU8: return reduce_type<IntegerCodec<uint8_t> >(args);
    case Type::kI32: return reduce_type<IntegerCodec<int32_t> >(args);
    case Type::kU32: return reduce_type<IntegerCodec<uint32_t> >(args);
    case Type::kI64: return reduce_type<IntegerCodec<int64_t> >(args);
    case Type::kU64: return reduce_type<IntegerCodec<uint64_t> >(args);
    default: return;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gatun {

HWY_EXPORT(integer_kernel);
void reduce_integer(const ReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(integer_kernel)(args);
}

}  // namespace gatun
#endif
