// Narrow floats to and from f32, one value at a time: the definition. The vector kernels are compared with it.
//
// A format is (exponent bits, mantissa bits, has infinity). Widening is exact. Narrowing rounds to nearest even once, keeps
// denormals, and makes every NaN the canonical positive one; what is too large becomes infinity, or NaN where there is none
// (f8e4m3, the non-saturating conversion of OCP 8-bit floating point 1.0).
#pragma once

#include <bit>
#include <cstdint>

namespace gatun {

inline constexpr uint32_t kNanF32 = 0x7fc00000u;
inline constexpr uint64_t kNanF64 = 0x7ff8000000000000ull;

template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct NarrowFloat {
  static constexpr int kExp = kExponentBits;
  static constexpr int kMan = kMantissaBits;
  static constexpr int kBias = (1 << (kExp - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (kExp + kMan);
  static constexpr uint32_t kMagnitude = kSign - 1;
  // The canonical NaN: quiet without payload, and all ones in 8 bits, as frameworks write it. The smallest magnitude that is
  // not finite.
  static constexpr uint32_t kNan = kExp + kMan > 7 ? kMagnitude & ~((1u << (kMan - 1)) - 1) : kMagnitude;
  static constexpr uint32_t kTooLarge = kHasInfinity ? ((1u << kExp) - 1) << kMan : kMagnitude;
  static constexpr bool kInfinity = kHasInfinity;

  static float widen(uint32_t bits) {
    const uint32_t sign = (bits & kSign) << (31 - kExp - kMan);
    const uint32_t magnitude = bits & kMagnitude;
    if (magnitude >= kTooLarge) {
      return std::bit_cast<float>(kHasInfinity && magnitude == kTooLarge ? sign | 0x7f800000u : kNanF32);
    }
    if (magnitude >> kMan) {
      return std::bit_cast<float>(sign | ((magnitude << (23 - kMan)) + (static_cast<uint32_t>(127 - kBias) << 23)));
    }
    // Denormal: a small integer times a power of two (for bf16 an f32 denormal, whose last place is 2^-149).
    if constexpr (kBias == 127) return std::bit_cast<float>(sign | magnitude << (23 - kMan));
    const float unit = std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMan) << 23);
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * unit));
  }

  static uint32_t narrow(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return kNan;
    const uint32_t sign = (bits >> 31) * kSign;
    // value = significand * 2^(exponent - 127 - 23); what lies under the target's last place is cut at `cut` bits.
    const int exponent = magnitude >> 23 ? static_cast<int>(magnitude >> 23) : 1;
    const uint32_t significand = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0);
    const int lowest = 127 - kBias + 1;  // the f32 exponent of the smallest normal number
    const int below = exponent < lowest ? lowest - exponent : 0;
    const int cut = 23 - kMan + below;
    if (cut > 25) return sign;  // under half of the smallest denormal
    const uint32_t kept = significand >> cut;
    const uint32_t rest = significand & ((1u << cut) - 1), half = 1u << (cut - 1);
    const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)));
    // The leading one of a normal number adds 1 to the exponent field; a denormal has none.
    const uint32_t result = rounded + (static_cast<uint32_t>(exponent + below - lowest) << kMan);
    if (result >= kTooLarge) return kHasInfinity ? sign | kTooLarge : kNan;
    return sign | result;
  }
};

using F16 = NarrowFloat<5, 10, true>;
using BF16 = NarrowFloat<8, 7, true>;
using E4M3 = NarrowFloat<4, 3, false>;
using E5M2 = NarrowFloat<5, 2, true>;

}  // namespace gatun
