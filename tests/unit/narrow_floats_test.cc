#include "protocols/narrow_floats.h"

#include <cmath>
#include <set>

#include "kernels_test.h"

// The conversions against an independent definition: a format is the sorted list of its values, written as mantissa times a
// power of two in f64, and rounding finds the nearer neighbour in that list.

using namespace gatun;

namespace {

struct Definition {
  int exponent_bits, mantissa_bits;
  bool infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  // Magnitudes 0..count-1 are finite and ascending.
  uint32_t finite() const {
    const uint32_t all = 1u << (exponent_bits + mantissa_bits);
    return infinity ? all - (1u << mantissa_bits) : all - 1;
  }
  double value(uint32_t magnitude) const {
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }
  uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  uint32_t nan() const {
    const uint32_t exponents = ((1u << exponent_bits) - 1) << mantissa_bits;
    return sign() == 0x80 ? 0x7f : exponents | 1u << (mantissa_bits - 1);
  }

  // lower is the largest finite magnitude not above |x|.
  uint32_t rounded(float x, uint32_t lower) const {
    const uint32_t minus = std::signbit(x) ? sign() : 0;
    const double magnitude = std::abs(static_cast<double>(x));
    const double below = value(lower), above = value(lower + 1);  // the list goes on for one value beyond the finite ones
    const double middle = (below + above) / 2;
    const uint32_t chosen = magnitude < middle || (magnitude == middle && lower % 2 == 0) ? lower : lower + 1;
    if (chosen < finite()) return minus | chosen;
    return infinity ? minus | finite() : nan();
  }
};

template <class Format>
void check_all(const Definition& format) {
  CHECK(Format::kNan == format.nan());
  for (uint32_t bits = 0; bits < 2 * format.sign(); ++bits) {
    const uint32_t magnitude = bits & (format.sign() - 1);
    const float wide = Format::widen(bits);
    INFO(std::hex << bits);
    if (magnitude < format.finite()) {
      const double want = format.value(magnitude);
      REQUIRE(static_cast<double>(std::abs(wide)) == want);
      REQUIRE(std::signbit(wide) == (bits != magnitude));
      REQUIRE(Format::narrow(wide) == bits);
    } else if (format.infinity && magnitude == format.finite()) {
      REQUIRE(std::isinf(wide));
      REQUIRE(std::signbit(wide) == (bits != magnitude));
      REQUIRE(Format::narrow(wide) == bits);
    } else {
      REQUIRE(std::bit_cast<uint32_t>(wide) == kNanF32);
      REQUIRE(Format::narrow(wide) == format.nan());
    }
  }
}

// f32 values at, beside and between all neighbours.
std::vector<float> boundaries(const Definition& format) {
  std::vector<float> values;
  for (uint32_t magnitude = 0; magnitude < format.finite(); ++magnitude) {
    const auto below = static_cast<float>(format.value(magnitude));
    const auto middle = static_cast<float>((format.value(magnitude) + format.value(magnitude + 1)) / 2);
    for (float x : {below, std::nextafterf(below, 0), std::nextafterf(below, INFINITY), middle, std::nextafterf(middle, 0),
                    std::nextafterf(middle, INFINITY)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  return values;
}

template <class Format>
void check_rounding(const Definition& format, float x) {
  const double magnitude = std::abs(static_cast<double>(x));
  uint32_t want;
  if (std::isnan(x)) {
    want = format.nan();
  } else if (std::isinf(x)) {
    want = format.infinity ? (std::signbit(x) ? format.sign() : 0) | format.finite() : format.nan();
  } else {
    uint32_t low = 0, high = format.finite();  // value(low) <= magnitude; value(high) > magnitude or high is not finite
    while (high - low > 1) {
      const uint32_t mid = (low + high) / 2;
      (format.value(mid) <= magnitude ? low : high) = mid;
    }
    want = format.rounded(x, low);
  }
  if (Format::narrow(x) == want) return;
  INFO(x << " = 0x" << std::hex << std::bit_cast<uint32_t>(x) << ": got 0x" << Format::narrow(x) << ", want 0x" << want);
  FAIL();
}

// The same values through the kernels: f32 partial sums to the narrow type, and the narrow type to f32.
void check_kernels(Type type, const std::vector<float>& values) {
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    const size_t elems = values.size(), size = elem_bytes(type);
    std::vector<uint8_t> got(elems * size), want(elems * size);
    const void* in[] = {values.data()};
    reduce({type, Op::kSum, 1, in, 1, got.data(), false, 1, elems});
    reduce_scalar({type, Op::kSum, 1, in, 1, want.data(), false, 1, elems});
    REQUIRE(got == want);
    const void* narrow[] = {want.data()};
    std::vector<float> wide(elems), wide_want(elems);
    reduce({type, Op::kSum, 1, narrow, 0, wide.data(), true, 1, elems});
    reduce_scalar({type, Op::kSum, 1, narrow, 0, wide_want.data(), true, 1, elems});
    CHECK(std::memcmp(wide.data(), wide_want.data(), 4 * elems) == 0);
  }
}

// Every narrow value through the loop for narrow inputs and output alone.
template <typename Bits>
void check_every_value(Type type, size_t count) {
  std::vector<Bits> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<Bits>(i);
  std::vector<Bits> zeros(count, static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1)));  // -0 changes nothing
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    for (int inputs : {1, 2, 3, 4}) {
      for (Op op : {Op::kSum, Op::kMax, Op::kMin, Op::kAvg}) {
        const void* in[] = {values.data(), zeros.data(), zeros.data(), zeros.data()};
        std::vector<Bits> got(count), want(count);
        reduce({type, op, inputs, in, 0, got.data(), false, 3, count});
        reduce_scalar({type, op, inputs, in, 0, want.data(), false, 3, count});
        REQUIRE(got == want);
      }
    }
  }
}

template <class Format, typename Bits>
void check_format(Type type, const Definition& format) {
  check_all<Format>(format);
  auto values = boundaries(format);
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f7fffffu, 0xff7fffffu, 0x7fffffffu, 0xffffffffu, 1u, 0x80000001u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  for (float x : values) check_rounding<Format>(format, x);
  check_kernels(type, values);
  check_every_value<Bits>(type, size_t{2} * format.sign());
}

}  // namespace

TEST_CASE("narrow_float__f16_is_exact", "[kernels]") {
  check_format<F16, uint16_t>(Type::kF16, {5, 10, true});
}
TEST_CASE("narrow_float__bf16_is_exact", "[kernels]") {
  check_format<BF16, uint16_t>(Type::kBF16, {8, 7, true});
}
TEST_CASE("narrow_float__e4m3_is_exact", "[kernels]") {
  check_format<E4M3, uint8_t>(Type::kE4M3, {4, 3, false});
}
TEST_CASE("narrow_float__e5m2_is_exact", "[kernels]") {
  check_format<E5M2, uint8_t>(Type::kE5M2, {5, 2, true});
}

TEST_CASE("narrow_float__known_values", "[kernels]") {
  CHECK(E4M3::widen(0x7e) == 448.0f);
  CHECK(E4M3::widen(0x01) == 0x1p-9f);
  CHECK(E4M3::narrow(464.0f) == 0x7e);  // a tie goes to the even one
  CHECK(E4M3::narrow(464.1f) == 0x7f);
  CHECK(E4M3::narrow(-464.1f) == 0x7f);
  CHECK(E5M2::widen(0x7b) == 57344.0f);
  CHECK(E5M2::widen(0x01) == 0x1p-16f);
  CHECK(E5M2::narrow(61440.0f) == 0x7c);
  CHECK(E5M2::narrow(-61440.0f) == 0xfc);
  CHECK(F16::narrow(65504.0f) == 0x7bff);
  CHECK(F16::narrow(65520.0f) == 0x7c00);
  CHECK(F16::narrow(0x1p-25f) == 0);
  CHECK(F16::narrow(0x1.8p-25f) == 1);
  CHECK(BF16::narrow(0x1p-149f) == 0);
  CHECK(BF16::narrow(1.00390625f) == 0x3f80);  // a tie
}
