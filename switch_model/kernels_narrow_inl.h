// Narrow floats in vectors: conversions to and from f32 that work on every instruction set, and codecs built from them.

#include "switch_model/kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

// One narrow value in each 32-bit lane to f32, exactly. A NaN may keep its payload.
template <class Format>
HWY_INLINE Vec<float> widen(Vec<uint32_t> bits) {
  const Tag<float> df;
  const Tag<uint32_t> du;
  const Tag<int32_t> di;
  const auto magnitude = hn::And(bits, hn::Set(du, Format::kMagnitude));
  const auto sign = hn::ShiftLeft<31 - Format::kExp - Format::kMan>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<23 - Format::kMan>(magnitude);
  if constexpr (Format::kBias == 127) {
    return hn::BitCast(df, hn::Or(shifted, sign));
  } else {
    const auto signed_magnitude = hn::BitCast(di, magnitude);
    const auto normal = hn::Add(shifted, hn::Set(du, static_cast<uint32_t>(127 - Format::kBias) << 23));
    const auto unit = hn::BitCast(df, hn::Set(du, static_cast<uint32_t>(127 + 1 - Format::kBias - Format::kMan) << 23));
    const auto denormal = hn::BitCast(du, hn::Mul(hn::ConvertTo(df, signed_magnitude), unit));
    const auto is_denormal = hn::Lt(signed_magnitude, hn::Set(di, 1 << Format::kMan));
    const auto is_special = hn::Gt(signed_magnitude, hn::Set(di, static_cast<int32_t>(Format::kTooLarge) - 1));
    // Infinity and NaN: the exponent field becomes all ones. Without infinity the mantissa of NaN is all ones already.
    const auto special = hn::Or(shifted, hn::Set(du, 0x7f800000u));
    auto result = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
    result = hn::IfThenElse(hn::RebindMask(du, is_special), special, result);
    return hn::BitCast(df, hn::Or(result, sign));
  }
}

// f32 to one narrow value in each 32-bit lane: nearest even, denormals kept, canonical NaN.
template <class Format>
HWY_INLINE Vec<uint32_t> narrow(Vec<float> value) {
  constexpr int kCut = 23 - Format::kMan;
  const Tag<float> df;
  const Tag<uint32_t> du;
  const Tag<int32_t> di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto sign = hn::ShiftRight<31 - Format::kExp - Format::kMan>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<kCut>(magnitude), hn::Set(du, 1));
  auto result = hn::ShiftRight<kCut>(hn::Add(hn::Add(magnitude, hn::Set(du, (1u << (kCut - 1)) - 1)), odd));
  if constexpr (Format::kBias != 127) {
    constexpr uint32_t kLowest = 127 - Format::kBias + 1;  // f32 exponent of the smallest normal number
    result = hn::Sub(result, hn::Set(du, (kLowest - 1) << Format::kMan));
    // The last place of this power of two is the smallest denormal, so adding it rounds there.
    const auto magic = hn::Set(du, static_cast<uint32_t>(127 + 1 - Format::kBias - Format::kMan + 23) << 23);
    const auto shifted = hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, magic));
    const auto denormal = hn::Sub(hn::BitCast(du, shifted), magic);
    const auto is_denormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(kLowest << 23)));
    result = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, result);
  }
  const auto too_large = hn::Set(di, static_cast<int32_t>(Format::kTooLarge));
  if constexpr (Format::kInfinity) {
    result = hn::BitCast(du, hn::Min(hn::BitCast(di, result), too_large));
    const auto is_nan = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000));
    return hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, Format::kNan), hn::Or(result, sign));
  } else {
    const auto is_nan = hn::Not(hn::Lt(hn::BitCast(di, result), too_large));
    return hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, Format::kNan), hn::Or(result, sign));
  }
}

// Elements in order, from the conversions above.
template <class Format, typename Bits>
struct NarrowCodec {
  using Reduced = float;
  using Finish = FloatFinish<float>;
  static constexpr bool kNarrow = true;
  static constexpr size_t kElemBytes = sizeof(Bits);
  static constexpr int kParts = sizeof(float) / sizeof(Bits);
  static constexpr int kUnroll = 1;
  static constexpr size_t kPrefetchBytes = 512;  // conversions leave the processor too little room to run ahead by itself
  using Guard = NoGuard;
  template <class State>
  static constexpr bool kFixedInputs = false;
  static constexpr size_t kPartBytes = kVecBytes / kParts;

  static HWY_INLINE Vec<float> load_ordered(const uint8_t* from) {
    return widen<Format>(hn::PromoteTo(Tag<uint32_t>(), load_bytes(hn::Rebind<Bits, Tag<float>>(), from)));
  }
  static HWY_INLINE void store_ordered(Vec<float> v, uint8_t* to) {
    const hn::Rebind<Bits, Tag<float>> d;
    store_bytes(d, hn::DemoteTo(d, hn::BitCast(Tag<int32_t>(), narrow<Format>(v))), to);
  }
  static HWY_INLINE void load(const uint8_t* from, NoGuard&, Vec<float> (&x)[kParts]) {
    GATUN_UNROLL for (int part = 0; part < kParts; ++part) x[part] = load_ordered(from + part * kPartBytes);
  }
  static HWY_INLINE void store(const Vec<float> (&x)[kParts], const Finish& finish, uint8_t* to) {
    GATUN_UNROLL for (int part = 0; part < kParts; ++part) store_ordered(finish.apply(x[part]), to + part * kPartBytes);
  }
};

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();
