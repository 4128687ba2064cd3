#include "host/fallback/arithmetic.h"
#include "kernels_test.h"

using namespace gatun;

namespace {

// All patterns, and f32 numbers at, beside and between all roundings.
template <typename Format, typename Bits>
void check_conversions(Type type) {
  const Arithmetic& arithmetic = Arithmetic::of(type, Op::kSum);
  auto same = [](float a, float b) { return a != a ? b != b : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); };
  auto check_narrow = [&](uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    Bits out = 0;
    arithmetic.store(&out, &value, 1, 1);
    if (out != Format::narrow(value)) FAIL(name(type) << " of f32 " << std::hex << bits << " is " << +out);
  };
  for (uint32_t bits = 0; bits <= static_cast<Bits>(~0u); ++bits) {
    const auto narrow = static_cast<Bits>(bits);
    float wide = 0;
    arithmetic.load(&wide, &narrow, 1);
    if (!same(wide, Format::widen(bits))) FAIL(name(type) << " " << std::hex << bits << " is " << wide);
  }
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      check_narrow(high << 16 | low);
    }
  }
}

}  // namespace

TEST_CASE("arithmetic__converts_like_the_definition", "[arithmetic]") {
  check_conversions<F16, uint16_t>(Type::kF16);
  check_conversions<BF16, uint16_t>(Type::kBF16);
  check_conversions<E4M3, uint8_t>(Type::kE4M3);
  check_conversions<E5M2, uint8_t>(Type::kE5M2);
}

TEST_CASE("arithmetic__equals_the_reference_step_by_step", "[arithmetic]") {
  constexpr size_t kElems = 997;
  Values values(3);
  for (Type type : kAllTypes) {
    for (Op op : kAllOps) {
      const Arithmetic& arithmetic = Arithmetic::of(type, op);
      REQUIRE(arithmetic.elem_bytes == elem_bytes(type));
      REQUIRE(arithmetic.accumulator_bytes == elem_bytes(partial_type(type)));
      std::vector<std::vector<uint8_t>> in(3, std::vector<uint8_t>(kElems * elem_bytes(type)));
      for (auto& input : in) values.fill(type, input.data(), kElems);
      const void* inputs[] = {in[0].data(), in[1].data(), in[2].data()};
      std::vector<uint8_t> want(in[0].size()), got(in[0].size()), total(kElems * 8), other(kElems * 8);
      reduce_scalar({type, op, 3, inputs, 0, want.data(), false, 3, kElems});
      arithmetic.load(total.data(), inputs[0], kElems);
      arithmetic.load(other.data(), inputs[1], kElems);
      arithmetic.combine(total.data(), total.data(), other.data(), kElems);
      arithmetic.add(total.data(), inputs[2], kElems);
      arithmetic.store(got.data(), total.data(), kElems, 3);
      INFO(name(type) << " " << name(op));
      REQUIRE((got == want));
    }
  }
}
