#include "host/fallback/arithmetic.h"
#include "kernels_test.h"

using namespace gatun;

// bf16 has conversions of its own here: all patterns, and numbers around every rounding.
TEST_CASE("arithmetic__converts_bf16_like_the_definition", "[arithmetic]") {
  const Arithmetic& arithmetic = Arithmetic::of(Type::kBF16, Op::kSum);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    float wide = 0;
    arithmetic.load(&wide, &narrow, 1);
    const float want = BF16::widen(bits);
    if (want == want) {
      REQUIRE(std::bit_cast<uint32_t>(wide) == std::bit_cast<uint32_t>(want));
    } else {
      REQUIRE(wide != wide);
    }
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>(bits << 16 | low);
      uint16_t out = 0;
      arithmetic.store(&out, &value, 1, 1);
      REQUIRE(out == BF16::narrow(value));
    }
  }
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
