// The reference of `gatun perf`, against published bit patterns and hand-made sums.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "host/tools/perf/numbers.h"

namespace gatun::perf {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> input(const Problem& problem, int rank, uint64_t first, uint64_t count) {
  std::vector<T> values(count);
  fill_input(problem, rank, first, count, values.data());
  return values;
}

template <typename T>
std::vector<T> expected(const Problem& problem, uint64_t count) {
  std::vector<T> values(count);
  fill_expected(problem, 0, count, values.data());
  return values;
}

}  // namespace

TEST_CASE("narrow__known_bit_patterns", "[perf][numbers]") {
  CHECK(narrow(GATUN_F16, 1.0f) == 0x3C00);
  CHECK(narrow(GATUN_F16, -2.0f) == 0xC000);
  CHECK(narrow(GATUN_F16, 65504.0f) == 0x7BFF);
  CHECK(narrow(GATUN_F16, 65519.0f) == 0x7BFF);  // below the midpoint to 65536
  CHECK(narrow(GATUN_F16, 65520.0f) == 0x7C00);  // the midpoint: to infinity
  CHECK(narrow(GATUN_F16, 5.9604645e-8f) == 0x0001);
  CHECK(narrow(GATUN_F16, 2.9802322e-8f) == 0x0000);  // half of the least: to even, which is zero
  CHECK(narrow(GATUN_F16, 6.1035156e-5f) == 0x0400);
  CHECK(narrow(GATUN_BF16, 1.0f) == 0x3F80);
  CHECK(narrow(GATUN_BF16, 3.3895314e38f) == 0x7F7F);
  CHECK(narrow(GATUN_BF16, std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(narrow(GATUN_BF16, 1.00390625f) == 0x3F80);  // 1 + 2^-8 is halfway: to even
  CHECK(narrow(GATUN_BF16, -0.0f) == 0x8000);
  CHECK(narrow(GATUN_F8E4M3, 448.0f) == 0x7E);
  CHECK(narrow(GATUN_F8E4M3, 464.0f) == 0x7E);  // halfway to what would be 480: to even
  CHECK(narrow(GATUN_F8E4M3, 465.0f) == 0x7F);  // no infinity: NaN
  CHECK(narrow(GATUN_F8E4M3, kInfinity) == 0x7F);
  CHECK(narrow(GATUN_F8E4M3, 0.001953125f) == 0x01);
  CHECK(narrow(GATUN_F8E4M3, 0.015625f) == 0x08);
  CHECK(narrow(GATUN_F8E5M2, 57344.0f) == 0x7B);
  CHECK(narrow(GATUN_F8E5M2, 61439.0f) == 0x7B);
  CHECK(narrow(GATUN_F8E5M2, 61440.0f) == 0x7C);  // halfway: to even, which is infinity
  CHECK(narrow(GATUN_F8E5M2, -kInfinity) == 0xFC);
  for (const gatun_type_t type : {GATUN_F16, GATUN_BF16, GATUN_F8E4M3, GATUN_F8E5M2}) {
    CHECK(std::isnan(widen(type, narrow(type, std::nanf("")))));
  }
}

TEST_CASE("widen__every_code_comes_back", "[perf][numbers]") {
  for (const gatun_type_t type : {GATUN_F16, GATUN_BF16, GATUN_F8E4M3, GATUN_F8E5M2}) {
    const uint32_t codes = 1u << (8 * elem_bytes(type));
    uint32_t wrong = 0;
    for (uint32_t code = 0; code < codes; ++code) {
      const float value = widen(type, code);
      if (!std::isnan(value) && narrow(type, value) != code) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("narrow__rounds_to_nearest", "[perf][numbers]") {
  // Against the definition: no other code is closer.
  for (const gatun_type_t type : {GATUN_F8E4M3, GATUN_F8E5M2}) {
    for (int i = -4000; i <= 4000; ++i) {
      const float value = static_cast<float>(i) * 0.0137f;
      const float got = widen(type, narrow(type, value));
      for (uint32_t code = 0; code < 256; ++code) {
        const float other = widen(type, code);
        if (!std::isfinite(other)) continue;
        REQUIRE(std::abs(got - value) <= std::abs(other - value));
      }
    }
  }
}

TEST_CASE("fill_input__depends_on_seed_rank_and_index_only", "[perf][numbers]") {
  const Problem problem{GATUN_F32, GATUN_SUM, Inputs::kBroad, 7, 4};
  const auto whole = input<float>(problem, 2, 0, 1000);
  const auto part = input<float>(problem, 2, 300, 100);
  CHECK(std::memcmp(whole.data() + 300, part.data(), 400) == 0);
  CHECK(input<float>(problem, 1, 0, 1000) != whole);
  Problem other = problem;
  other.seed = 8;
  CHECK(input<float>(other, 2, 0, 1000) != whole);
}

TEST_CASE("fill_expected__is_the_sum_in_rank_order", "[perf][numbers]") {
  const Problem problem{GATUN_F32, GATUN_SUM, Inputs::kBroad, 1, 3};
  const auto a = input<float>(problem, 0, 0, 4096), b = input<float>(problem, 1, 0, 4096),
             c = input<float>(problem, 2, 0, 4096);
  const auto sum = expected<float>(problem, 4096);
  int order_shows = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    REQUIRE(sum[i] == (a[i] + b[i]) + c[i]);
    order_shows += sum[i] != a[i] + (b[i] + c[i]);
  }
  CHECK(order_shows > 100);  // else the check could not tell a wrong order
}

TEST_CASE("fill_expected__narrow_floats_round_once", "[perf][numbers]") {
  const Problem problem{GATUN_BF16, GATUN_SUM, Inputs::kBroad, 1, 4};
  const auto sum = expected<uint16_t>(problem, 2000);
  int rounding_shows = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    float total = 0, rounded_each = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const float value = widen(GATUN_BF16, input<uint16_t>(problem, rank, i, 1)[0]);
      total += value;
      rounded_each = widen(GATUN_BF16, narrow(GATUN_BF16, rounded_each + value));
    }
    REQUIRE(sum[i] == narrow(GATUN_BF16, total));
    rounding_shows += widen(GATUN_BF16, sum[i]) != rounded_each;
  }
  CHECK(rounding_shows > 50);
}

TEST_CASE("fill_expected__integers_wrap_and_averages_truncate", "[perf][numbers]") {
  Problem problem{GATUN_I8, GATUN_AVG, Inputs::kBroad, 3, 3};
  const auto average = expected<int8_t>(problem, 500);
  problem.op = GATUN_SUM;
  const auto sum = expected<int8_t>(problem, 500);
  bool wrapped = false;
  for (size_t i = 0; i < sum.size(); ++i) {
    int exact = 0;
    for (int rank = 0; rank < 3; ++rank) exact += input<int8_t>(problem, rank, i, 1)[0];
    REQUIRE(sum[i] == static_cast<int8_t>(exact));
    REQUIRE(average[i] == sum[i] / 3);
    wrapped |= exact != sum[i];
  }
  CHECK(wrapped);
}

TEST_CASE("fill_expected__small_integers_sum_to_the_same_in_any_order", "[perf][numbers]") {
  for (const gatun_type_t type : {GATUN_F32, GATUN_F16}) {
    const Problem problem{type, GATUN_SUM, Inputs::kSmallIntegers, 1, 8};
    for (uint64_t i = 0; i < 200; ++i) {
      int exact = 0;
      for (int rank = 0; rank < 8; ++rank) {
        if (type == GATUN_F32) exact += static_cast<int>(input<float>(problem, rank, i, 1)[0]);
        if (type == GATUN_F16) exact += static_cast<int>(widen(type, input<uint16_t>(problem, rank, i, 1)[0]));
      }
      if (type == GATUN_F32) REQUIRE(expected<float>(problem, 200)[i] == static_cast<float>(exact));
      if (type == GATUN_F16) REQUIRE(widen(type, expected<uint16_t>(problem, 200)[i]) == static_cast<float>(exact));
    }
  }
}

TEST_CASE("count_wrong__counts_bits_but_takes_any_nan_for_any", "[perf][numbers]") {
  std::vector<float> a = {1, 2, std::nanf("1"), 0.0f};
  std::vector<float> b = {1, 2, -std::nanf("2"), -0.0f};
  CHECK(count_wrong(GATUN_F32, a.data(), b.data(), 3) == 0);
  CHECK(count_wrong(GATUN_F32, a.data(), b.data(), 4) == 1);  // -0 is not +0
  b[0] = std::nextafter(1.0f, 2.0f);
  CHECK(count_wrong(GATUN_F32, a.data(), b.data(), 3) == 1);
}

TEST_CASE("parse_type__takes_both_spellings", "[perf][numbers]") {
  gatun_type_t type = GATUN_I8;
  for (const char* text : {"half", "f16", "HALF"}) {
    REQUIRE(parse_type(text, &type));
    CHECK(type == GATUN_F16);
  }
  CHECK_FALSE(parse_type("float16x", &type));
}

}  // namespace gatun::perf
