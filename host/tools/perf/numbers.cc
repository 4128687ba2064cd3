#include "host/tools/perf/numbers.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace gatun::perf {
namespace {

struct TypeNames {
  const char* nccl;
  const char* own;
  size_t bytes;
};
constexpr TypeNames kTypeNames[kAllTypes] = {
    {"int8", "i8", 1},    {"uint8", "u8", 1},      {"int32", "i32", 4},     {"uint32", "u32", 4},
    {"int64", "i64", 8},  {"uint64", "u64", 8},    {"half", "f16", 2},      {"float", "f32", 4},
    {"double", "f64", 8}, {"bfloat16", "bf16", 2}, {"f8e4m3", "f8e4m3", 1}, {"f8e5m2", "f8e5m2", 1},
};
constexpr const char* kOpNames[kAllOps] = {"sum", "prod", "max", "min", "avg"};

// A float of `exponent_bits` and `mantissa_bits`. Codes above max_finite are `overflow` (infinity, or NaN where the type has
// no infinity) and NaN.
struct Format {
  int exponent_bits, mantissa_bits;
  uint32_t max_finite, overflow, nan;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
};
constexpr Format kF16 = {5, 10, 0x7BFF, 0x7C00, 0x7E00};
constexpr Format kBF16 = {8, 7, 0x7F7F, 0x7F80, 0x7FC0};
constexpr Format kE4M3 = {4, 3, 0x7E, 0x7F, 0x7F};
constexpr Format kE5M2 = {5, 2, 0x7B, 0x7C, 0x7E};

float widen_as(const Format& format, uint32_t bits) {
  const uint32_t code = bits & ((1u << format.sign_shift()) - 1);
  const float sign = (bits >> format.sign_shift()) & 1 ? -1.0f : 1.0f;
  if (code > format.max_finite) {
    const bool infinite = code == format.overflow && format.overflow != format.nan;
    return infinite ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  const int exponent = static_cast<int>(code >> format.mantissa_bits);
  const uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1);
  const uint32_t whole = exponent == 0 ? mantissa : mantissa | (1u << format.mantissa_bits);
  return sign * std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - format.bias() - format.mantissa_bits);
}

uint32_t narrow_as(const Format& format, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << format.sign_shift();
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return format.nan;  // NaN loses its sign and payload
  const int least_normal = 1 - format.bias();
  const double absolute = std::bit_cast<float>(magnitude);
  uint64_t code;
  if (absolute < std::ldexp(1.0, least_normal)) {
    code = static_cast<uint64_t>(std::nearbyint(std::ldexp(absolute, format.mantissa_bits - least_normal)));
  } else if (std::isinf(absolute)) {
    code = format.overflow;
  } else {
    const int drop = 23 - format.mantissa_bits;
    const uint32_t half_less_one = (1u << (drop - 1)) - 1;
    const uint32_t rounded = (magnitude + half_less_one + ((magnitude >> drop) & 1)) >> drop;
    code = rounded - (static_cast<uint64_t>(127 - format.bias()) << format.mantissa_bits);
  }
  return sign | static_cast<uint32_t>(code > format.max_finite ? format.overflow : code);
}

// Widening is a look-up: checking 64 MiB of f16 from eight ranks must not take minutes.
template <const Format& format>
const float* widen_table() {
  static const std::vector<float> table = [] {
    std::vector<float> values(size_t{2} << format.sign_shift());
    for (uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = widen_as(format, bits);
    return values;
  }();
  return table.data();
}

// Element types: what is stored, what it is reduced in, and how to go from one to the other.
template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide wide(Stored value) { return value; }
  static Stored stored(Wide value) { return value; }
};
template <const Format& format>
struct Narrow {
  using Stored = std::conditional_t<(format.exponent_bits + format.mantissa_bits > 8), uint16_t, uint8_t>;
  using Wide = float;
  static Wide wide(Stored value) { return widen_table<format>()[value]; }
  static Stored stored(Wide value) { return static_cast<Stored>(narrow_as(format, value)); }
};

// Calls f with the element type's traits.
template <typename F>
auto with_type(gatun_type_t type, F&& f) {
  switch (type) {
    case GATUN_I8: return f(Plain<int8_t>{});
    case GATUN_U8: return f(Plain<uint8_t>{});
    case GATUN_I32: return f(Plain<int32_t>{});
    case GATUN_U32: return f(Plain<uint32_t>{});
    case GATUN_I64: return f(Plain<int64_t>{});
    case GATUN_U64: return f(Plain<uint64_t>{});
    case GATUN_F16: return f(Narrow<kF16>{});
    case GATUN_F32: return f(Plain<float>{});
    case GATUN_F64: return f(Plain<double>{});
    case GATUN_BF16: return f(Narrow<kBF16>{});
    case GATUN_F8E4M3: return f(Narrow<kE4M3>{});
    case GATUN_F8E5M2: break;
  }
  return f(Narrow<kE5M2>{});
}

// Steele, Lea and Flood's SplitMix64: every output bit depends on every input bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <typename Wide>
Wide sample(const Problem& problem, uint64_t hash) {
  if (problem.inputs == Inputs::kSmallIntegers) {
    const int value =
        static_cast<int>(hash % 17);  // 0..8 unsigned, -8..8 signed: 64 ranks fit every type but the 8-bit ones
    return static_cast<Wide>(std::is_unsigned_v<Wide> ? value / 2 : value - 8);
  }
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(hash);
  } else {
    constexpr int kBits = std::is_same_v<Wide, double> ? 53 : 24;
    const Wide unit = static_cast<Wide>(hash >> (64 - kBits)) * static_cast<Wide>(std::ldexp(1.0, -kBits));  // [0, 1)
    const bool negative = hash & 1;
    if (problem.op == GATUN_PROD) return (negative ? -1 : 1) * (static_cast<Wide>(0.5) + unit * static_cast<Wide>(1.5));
    const Wide spread = static_cast<Wide>(1u << ((hash >> 1) & 7)) / 16;  // 1/16 .. 8
    return (negative ? -unit : unit) * spread;
  }
}

template <typename Wide>
Wide wrapping(Wide a, Wide b, bool multiply) {
  if constexpr (std::is_integral_v<Wide>) {
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<Wide>(multiply ? x * y : x + y);
  } else {
    return multiply ? a * b : a + b;
  }
}

template <typename Wide>
bool below(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    if (a == 0 && b == 0) return std::signbit(a) && !std::signbit(b);
  }
  return a < b;
}

template <typename Wide>
Wide combine(gatun_op_t op, Wide a, Wide b) {
  if (op == GATUN_SUM || op == GATUN_AVG) return wrapping(a, b, false);
  if (op == GATUN_PROD) return wrapping(a, b, true);
  if constexpr (std::is_floating_point_v<Wide>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  if (op == GATUN_MAX) return below(a, b) ? b : a;
  return below(b, a) ? b : a;
}

template <typename Wide>
Wide divided(Wide total, int nranks) {
  if constexpr (std::is_floating_point_v<Wide>) return total / static_cast<Wide>(nranks);
  if constexpr (std::is_signed_v<Wide>) return static_cast<Wide>(static_cast<int64_t>(total) / nranks);
  return static_cast<Wide>(static_cast<uint64_t>(total) / static_cast<uint64_t>(nranks));
}

uint64_t stream_of(const Problem& problem, int rank) {
  return mix(mix(problem.seed) + static_cast<uint64_t>(rank) * 0x632BE59BD9B4E019ull);
}

template <typename Traits>
typename Traits::Stored input_at(const Problem& problem, uint64_t stream, uint64_t index) {
  return Traits::stored(sample<typename Traits::Wide>(problem, mix(stream ^ index)));
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

size_t elem_bytes(gatun_type_t type) {
  return kTypeNames[type].bytes;
}
const char* type_name(gatun_type_t type) {
  return kTypeNames[type].nccl;
}
const char* op_name(gatun_op_t op) {
  return kOpNames[op];
}

bool parse_type(const std::string& text, gatun_type_t* type) {
  const std::string name = lower(text);
  for (int i = 0; i < kAllTypes; ++i) {
    if (name == kTypeNames[i].nccl || name == kTypeNames[i].own) {
      *type = static_cast<gatun_type_t>(i);
      return true;
    }
  }
  return false;
}

bool parse_op(const std::string& text, gatun_op_t* op) {
  const std::string name = lower(text);
  for (int i = 0; i < kAllOps; ++i) {
    if (name == kOpNames[i]) {
      *op = static_cast<gatun_op_t>(i);
      return true;
    }
  }
  return false;
}

std::string type_names() {
  std::string names;
  for (const TypeNames& type : kTypeNames) names += std::string(type.nccl) + ", ";
  return names + "all";
}

std::string op_names() {
  std::string names;
  for (const char* op : kOpNames) names += std::string(op) + ", ";
  return names + "all";
}

void fill_input(const Problem& problem, int rank, uint64_t first, uint64_t count, void* out) {
  const uint64_t stream = stream_of(problem, rank);
  with_type(problem.type, [&](auto traits) {
    using Traits = decltype(traits);
    auto* bytes = static_cast<unsigned char*>(out);
    for (uint64_t i = 0; i < count; ++i) {
      const auto value = input_at<Traits>(problem, stream, first + i);
      std::memcpy(bytes + i * sizeof(value), &value, sizeof(value));
    }
  });
}

void fill_expected(const Problem& problem, uint64_t first, uint64_t count, void* out) {
  std::vector<uint64_t> streams;
  for (int rank = 0; rank < problem.nranks; ++rank) streams.push_back(stream_of(problem, rank));
  with_type(problem.type, [&](auto traits) {
    using Traits = decltype(traits);
    using Wide = typename Traits::Wide;
    auto* bytes = static_cast<unsigned char*>(out);
    for (uint64_t i = 0; i < count; ++i) {
      Wide total = Traits::wide(input_at<Traits>(problem, streams[0], first + i));
      for (int rank = 1; rank < problem.nranks; ++rank) {
        total = combine<Wide>(problem.op, total, Traits::wide(input_at<Traits>(problem, streams[rank], first + i)));
      }
      if (problem.op == GATUN_AVG) total = divided(total, problem.nranks);
      const auto value = Traits::stored(total);
      std::memcpy(bytes + i * sizeof(value), &value, sizeof(value));
    }
  });
}

uint64_t count_wrong(gatun_type_t type, const void* got, const void* want, uint64_t count) {
  const size_t size = elem_bytes(type);
  if (std::memcmp(got, want, count * size) == 0) return 0;
  return with_type(type, [&](auto traits) {
    using Traits = decltype(traits);
    const auto* a = static_cast<const unsigned char*>(got);
    const auto* b = static_cast<const unsigned char*>(want);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; ++i) {
      typename Traits::Stored x, y;
      std::memcpy(&x, a + i * sizeof(x), sizeof(x));
      std::memcpy(&y, b + i * sizeof(y), sizeof(y));
      if (std::memcmp(&x, &y, sizeof(x)) == 0) continue;
      const auto wide_x = Traits::wide(x), wide_y = Traits::wide(y);
      if (wide_x != wide_x && wide_y != wide_y) continue;  // both NaN
      ++wrong;
    }
    return wrong;
  });
}

float widen(gatun_type_t type, uint32_t bits) {
  switch (type) {
    case GATUN_F16: return widen_as(kF16, bits);
    case GATUN_BF16: return widen_as(kBF16, bits);
    case GATUN_F8E4M3: return widen_as(kE4M3, bits);
    default: return widen_as(kE5M2, bits);
  }
}

uint32_t narrow(gatun_type_t type, float value) {
  switch (type) {
    case GATUN_F16: return narrow_as(kF16, value);
    case GATUN_BF16: return narrow_as(kBF16, value);
    case GATUN_F8E4M3: return narrow_as(kE4M3, value);
    default: return narrow_as(kE5M2, value);
  }
}

}  // namespace gatun::perf
