#include "host/fallback/arithmetic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "protocols/element_arithmetic.h"
#include "protocols/narrow_floats.h"

// Built without contraction into fused operations, and optimised in debug builds as well.

namespace gatun {
namespace {

template <typename T>
T at(const void* from, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(void* to, size_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
}

// How a type is stored, and what it is computed in.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored value) { return value; }
  static Stored narrow(Wide value) {
    if constexpr (std::is_same_v<T, float>) {
      return std::isnan(value) ? std::bit_cast<float>(kNanF32) : value;
    } else if constexpr (std::is_same_v<T, double>) {
      return std::isnan(value) ? std::bit_cast<double>(kNanF64) : value;
    } else {
      return value;
    }
  }
};

// By masks: the compiler would make a branch of a conditional expression.
uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0 - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// The same values as NarrowFloat's, without branches, so that loops become vector code. Denormals are scaled or rounded by
// one exact step of f32 arithmetic, which a FloatEnvironment makes dependable.
template <typename Format, typename Bits>
struct Narrow {
  using Stored = Bits;
  using Wide = float;
  static constexpr int kShift = 23 - Format::kMan;
  static constexpr int kSignShift = 31 - Format::kExp - Format::kMan;
  static constexpr uint32_t kLowest = static_cast<uint32_t>(127 - Format::kBias + 1);  // f32 exponent of the smallest normal

  static Wide widen(Stored value) {
    const uint32_t bits = value, magnitude = bits & Format::kMagnitude;
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(2 * 127 - Format::kBias) << 23);
    const float scaled = std::bit_cast<float>(magnitude << kShift) * scale;
    const uint32_t special = Format::kInfinity && magnitude == Format::kTooLarge ? 0x7f800000u : kNanF32;
    const uint32_t wide = magnitude >= Format::kTooLarge ? special : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(wide | (bits & Format::kSign) << kSignShift);
  }
  static Stored narrow(Wide value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
    const uint32_t half = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1);  // rounds to even
    const uint32_t normal = (magnitude - ((kLowest - 1) << 23) + half) >> kShift;
    // The last place of this number is the target's smallest denormal: adding it rounds, and leaves the count of them.
    const float ruler = std::bit_cast<float>((kLowest + kShift) << 23);
    const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + ruler) - ((kLowest + kShift) << 23);
    const uint32_t rounded = select(magnitude < kLowest << 23, denormal, normal);
    const uint32_t sign = bits >> kSignShift & Format::kSign;
    const uint32_t too_large = Format::kInfinity ? Format::kTooLarge | sign : Format::kNan;
    const uint32_t number = select(rounded >= Format::kTooLarge, too_large, rounded | sign);
    return static_cast<Stored>(select(magnitude > 0x7f800000u, Format::kNan, number));
  }
};

// bf16 is the upper half of an f32.
template <>
struct Narrow<BF16, uint16_t> {
  using Stored = uint16_t;
  using Wide = float;
  static Wide widen(Stored value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
  static Stored narrow(Wide value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return static_cast<Stored>((bits & 0x7fffffff) > 0x7f800000 ? BF16::kNan : rounded);
  }
};

template <typename Format>
void load(void* accumulator, const void* in, size_t elems) {
  for (size_t i = 0; i < elems; ++i) put(accumulator, i, Format::widen(at<typename Format::Stored>(in, i)));
}

template <typename Format, Op op>
void add(void* accumulator, const void* in, size_t elems) {
  using Wide = typename Format::Wide;
  for (size_t i = 0; i < elems; ++i) {
    put<Wide>(accumulator, i, apply<Wide>(op, at<Wide>(accumulator, i), Format::widen(at<typename Format::Stored>(in, i))));
  }
}

template <typename Wide, Op op>
void combine(void* out, const void* a, const void* b, size_t elems) {
  for (size_t i = 0; i < elems; ++i) put<Wide>(out, i, apply<Wide>(op, at<Wide>(a, i), at<Wide>(b, i)));
}

template <typename Format, Op op>
void store(void* out, const void* accumulator, size_t elems, uint32_t divisor) {
  using Wide = typename Format::Wide;
  for (size_t i = 0; i < elems; ++i) {
    Wide value = at<Wide>(accumulator, i);
    if constexpr (op == Op::kAvg) value = divide(value, divisor);
    put(out, i, Format::narrow(value));
  }
}

template <typename Format, Op op>
constexpr Arithmetic kOne = {sizeof(typename Format::Stored),
                             sizeof(typename Format::Wide),
                             load<Format>,
                             add<Format, op>,
                             combine<typename Format::Wide, op>,
                             store<Format, op>};

template <typename Format>
const Arithmetic& of_format(Op op) {
  switch (op) {
    case Op::kSum: break;
    case Op::kProd: return kOne<Format, Op::kProd>;
    case Op::kMax: return kOne<Format, Op::kMax>;
    case Op::kMin: return kOne<Format, Op::kMin>;
    case Op::kAvg: return kOne<Format, Op::kAvg>;
  }
  return kOne<Format, Op::kSum>;
}

}  // namespace

const Arithmetic& Arithmetic::of(Type type, Op op) {
  switch (type) {
    case Type::kI8: return of_format<Plain<int8_t>>(op);
    case Type::kU8: return of_format<Plain<uint8_t>>(op);
    case Type::kI32: return of_format<Plain<int32_t>>(op);
    case Type::kU32: return of_format<Plain<uint32_t>>(op);
    case Type::kI64: return of_format<Plain<int64_t>>(op);
    case Type::kU64: return of_format<Plain<uint64_t>>(op);
    case Type::kF32: break;
    case Type::kF64: return of_format<Plain<double>>(op);
    case Type::kF16: return of_format<Narrow<F16, uint16_t>>(op);
    case Type::kBF16: return of_format<Narrow<BF16, uint16_t>>(op);
    case Type::kE4M3: return of_format<Narrow<E4M3, uint8_t>>(op);
    case Type::kE5M2: return of_format<Narrow<E5M2, uint8_t>>(op);
  }
  return of_format<Plain<float>>(op);
}

}  // namespace gatun
