#include "protocols/types.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "gatun/gatun.h"
#include "protocols/status.h"

using namespace gatun;

TEST_CASE("elem_bytes__every_type", "[types]") {
  const size_t expected[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  for (int t = 0; t < kTypes; ++t) CHECK(elem_bytes(static_cast<Type>(t)) == expected[t]);
}

TEST_CASE("partial_type__narrow_floats_travel_as_f32", "[types]") {
  for (int t = 0; t < kTypes; ++t) {
    const Type type = static_cast<Type>(t);
    const bool narrow = type == Type::kF16 || type == Type::kBF16 || type == Type::kE4M3 || type == Type::kE5M2;
    CHECK(partial_type(type) == (narrow ? Type::kF32 : type));
  }
}

TEST_CASE("valid_type__ends_after_the_last", "[types]") {
  CHECK(valid_type(kTypes - 1));
  CHECK_FALSE(valid_type(kTypes));
  CHECK_FALSE(valid_type(~0u));
  CHECK(valid_op(kOps - 1));
  CHECK_FALSE(valid_op(kOps));
}

TEST_CASE("name__distinct_and_known", "[types]") {
  std::set<std::string> names;
  for (int t = 0; t < kTypes; ++t) names.insert(name(static_cast<Type>(t)));
  for (int o = 0; o < kOps; ++o) names.insert(name(static_cast<Op>(o)));
  for (int c = 0; c < kCollectives; ++c) names.insert(name(static_cast<Collective>(c)));
  CHECK(names.size() == kTypes + kOps + kCollectives);
  CHECK(name(static_cast<Type>(kTypes)) == std::string("unknown type"));
}

// The C ABI repeats these numbers; a caller's value is passed through unchanged.
TEST_CASE("types__c_abi_has_the_same_numbers", "[types]") {
  STATIC_REQUIRE(GATUN_I8 == int(Type::kI8));
  STATIC_REQUIRE(GATUN_U64 == int(Type::kU64));
  STATIC_REQUIRE(GATUN_F16 == int(Type::kF16));
  STATIC_REQUIRE(GATUN_BF16 == int(Type::kBF16));
  STATIC_REQUIRE(GATUN_F8E4M3 == int(Type::kE4M3));
  STATIC_REQUIRE(GATUN_F8E5M2 == int(Type::kE5M2));
  STATIC_REQUIRE(GATUN_SUM == int(Op::kSum));
  STATIC_REQUIRE(GATUN_AVG == int(Op::kAvg));
  STATIC_REQUIRE(GATUN_MISMATCH == int(Code::kMismatch));
  STATIC_REQUIRE(GATUN_INTERNAL == int(Code::kInternal));
}
