#include "kernels_test.h"

#include <algorithm>
#include <cmath>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// Every instruction set against the scalar reference, and the reference against values worked out here or by hand.

using namespace gatun;

namespace {

template <typename T>
std::vector<T> reduce_vectors(Type type, Op op, const std::vector<std::vector<T>>& inputs, uint32_t divisor = 1) {
  std::vector<const void*> in;
  for (const auto& input : inputs) in.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  ReduceArgs args{type, op, static_cast<int>(in.size()), in.data(), 0, out.data(), false, divisor, out.size()};
  std::vector<T> reference(out.size());
  reduce(args);
  args.out = reference.data();
  reduce_scalar(args);
  REQUIRE(std::memcmp(out.data(), reference.data(), out.size() * sizeof(T)) == 0);
  return out;
}

template <typename T, typename F>
std::vector<T> make(size_t n, F f) {
  std::vector<T> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<T>(f(i));
  return v;
}

}  // namespace

TEST_CASE("reduce__equals_reference_for_every_type_op_and_number_of_inputs", "[kernels]") {
  constexpr size_t kElems = 1031;
  Comparison comparison(kElems);
  uint32_t seed = 1;
  for (Type type : kAllTypes) {
    for (Op op : kAllOps) {
      for (int inputs : {1, 2, 3, 4, 5, 8, 11, 16, 17, 64}) {
        for (uint32_t divisor : {static_cast<uint32_t>(inputs), 3u}) {
          comparison.run({type, op, inputs, 0, false, divisor, kElems}, ++seed);
          if (op != Op::kAvg) break;
        }
      }
    }
  }
}

TEST_CASE("reduce__equals_reference_for_partial_inputs_and_outputs", "[kernels]") {
  constexpr size_t kElems = 333;
  Comparison comparison(kElems);
  uint32_t seed = 1000;
  for (Type type : kAllTypes) {
    for (Op op : kAllOps) {
      for (int inputs : {1, 2, 3, 4, 8, 16, 64}) {
        const uint64_t all = ~uint64_t{0} >> (64 - inputs);
        for (uint64_t partial : {uint64_t{0}, all, uint64_t{0xaaaaaaaaaaaaaaaa} & all, uint64_t{1}}) {
          comparison.run({type, op, inputs, partial, true, 6, kElems}, ++seed);
          comparison.run({type, op, inputs, partial, false, 6, kElems}, ++seed);
        }
      }
    }
  }
}

TEST_CASE("reduce__handles_every_tail_without_touching_more", "[kernels]") {
  Comparison comparison(700);
  uint32_t seed = 2000;
  for (Type type : kAllTypes) {
    // Over the longest step of any loop (4 vectors of 64 bytes) by more than a vector.
    const size_t longest = 330 / elem_bytes(type);
    for (size_t elems = 0; elems <= longest; ++elems) {
      comparison.run({type, Op::kSum, 2, 0, false, 1, elems}, ++seed);
      comparison.run({type, Op::kAvg, 3, 0, false, 3, elems}, ++seed);
      comparison.run({type, Op::kMax, 5, 0, false, 1, elems}, ++seed);
      if (!is_narrow(type) || elems > 100) continue;
      comparison.run({type, Op::kSum, 3, 2, false, 1, elems}, ++seed);
      comparison.run({type, Op::kMin, 2, 1, true, 1, elems}, ++seed);
    }
  }
}

TEST_CASE("reduce__works_in_place_of_any_input", "[kernels]") {
  constexpr size_t kElems = 301;
  Comparison comparison(kElems);
  uint32_t seed = 3000;
  for (Type type : kAllTypes) {
    for (int inputs : {1, 2, 3, 4, 8, 16}) {
      for (int k : {0, inputs / 2, inputs - 1}) {
        for (Op op : {Op::kSum, Op::kMin, Op::kAvg}) {
          comparison.run_in_place({type, op, inputs, 0, false, 5, kElems}, k, ++seed);
          const uint64_t one = uint64_t{1} << k;
          comparison.run_in_place({type, op, inputs, one, true, 5, kElems}, k, ++seed);
        }
      }
    }
  }
}

TEST_CASE("reduce__gives_canonical_nan_whatever_came_in", "[kernels]") {
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    INFO(target);
    for (Op op : kAllOps) {
      for (int inputs : {1, 2, 3, 4}) {
        auto f32 = [&](uint32_t nan) {
          std::vector<std::vector<uint32_t>> in(static_cast<size_t>(inputs), std::vector<uint32_t>(37, 0x3f800000u));
          in.back().assign(37, nan);
          return reduce_vectors(Type::kF32, op, in, 2);
        };
        auto all = [&](Type type, auto one, auto nan, auto want) {
          std::vector<std::vector<decltype(one)>> in(static_cast<size_t>(inputs), std::vector<decltype(one)>(137, one));
          in.front().assign(137, nan);
          auto out = reduce_vectors(type, op, in, 2);
          REQUIRE(std::all_of(out.begin(), out.end(), [&](auto v) { return v == want; }));
        };
        CHECK(f32(0xffc00001u)[36] == 0x7fc00000u);
        CHECK(f32(0x7f800001u)[0] == 0x7fc00000u);  // signalling
        all(Type::kF64, uint64_t{0x3ff0000000000000}, uint64_t{0xfff0000000000001}, uint64_t{0x7ff8000000000000});
        all(Type::kF16, uint16_t{0x3c00}, uint16_t{0xfc01}, uint16_t{0x7e00});
        all(Type::kBF16, uint16_t{0x3f80}, uint16_t{0xff81}, uint16_t{0x7fc0});
        all(Type::kE4M3, uint8_t{0x38}, uint8_t{0xff}, uint8_t{0x7f});
        all(Type::kE5M2, uint8_t{0x3c}, uint8_t{0xfd}, uint8_t{0x7f});
      }
    }
  }
}

// Infinity minus infinity, and zero times infinity.
TEST_CASE("reduce__makes_nan_where_ieee_does", "[kernels]") {
  const float inf = std::numeric_limits<float>::infinity();
  auto bits = [](float f) { return std::bit_cast<uint32_t>(f); };
  using V = std::vector<std::vector<float>>;
  CHECK(bits(reduce_vectors(Type::kF32, Op::kSum, V{{inf}, {-inf}})[0]) == kNanF32);
  CHECK(bits(reduce_vectors(Type::kF32, Op::kProd, V{{inf}, {0.0f}})[0]) == kNanF32);
  CHECK(reduce_vectors(Type::kF32, Op::kSum, V{{inf}, {1.0f}, {-3.0f}})[0] == inf);
  CHECK(reduce_vectors(Type::kF32, Op::kAvg, V{{-inf}, {1.0f}}, 2)[0] == -inf);
}

TEST_CASE("reduce__orders_signed_zeros_and_keeps_them", "[kernels]") {
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    using V = std::vector<std::vector<uint32_t>>;
    const uint32_t plus = 0, minus = 0x80000000u;
    CHECK(reduce_vectors(Type::kF32, Op::kMax, V{{minus}, {plus}})[0] == plus);
    CHECK(reduce_vectors(Type::kF32, Op::kMax, V{{plus}, {minus}})[0] == plus);
    CHECK(reduce_vectors(Type::kF32, Op::kMin, V{{minus}, {plus}})[0] == minus);
    CHECK(reduce_vectors(Type::kF32, Op::kMin, V{{plus}, {minus}})[0] == minus);
    CHECK(reduce_vectors(Type::kF32, Op::kMax, V{{minus}, {minus}, {minus}})[0] == minus);
    CHECK(reduce_vectors(Type::kF32, Op::kSum, V{{minus}, {minus}})[0] == minus);
    CHECK(reduce_vectors(Type::kF32, Op::kSum, V{{minus}})[0] == minus);
    CHECK(reduce_vectors(Type::kF32, Op::kSum, V{{minus}, {plus}})[0] == plus);
  }
}

TEST_CASE("reduce__adds_in_the_order_of_inputs", "[kernels]") {
  std::vector<float> parts{1e8f, 1.0f, -1e8f, 1.0f};
  std::sort(parts.begin(), parts.end());
  do {
    std::vector<std::vector<float>> in;
    float want = 0;
    for (float part : parts) in.push_back(std::vector<float>(100, part));
    want = ((parts[0] + parts[1]) + parts[2]) + parts[3];
    auto out = reduce_vectors(Type::kF32, Op::kSum, in);
    REQUIRE(std::all_of(out.begin(), out.end(), [&](float v) { return v == want; }));
  } while (std::next_permutation(parts.begin(), parts.end()));
}

TEST_CASE("reduce__rounds_f16_sums_over_the_whole_range_once", "[kernels]") {
  constexpr size_t kElems = 1 << 16;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> range(-65504.0f, 65504.0f);
  auto a = make<uint16_t>(kElems, [&](size_t) { return F16::narrow(range(random)); });
  auto b = make<uint16_t>(kElems, [&](size_t) { return F16::narrow(range(random)); });
  auto out = reduce_vectors(Type::kF16, Op::kSum, std::vector<std::vector<uint16_t>>{a, b});
  size_t overflows = 0;
  for (size_t i = 0; i < kElems; ++i) {
    // The sum of two f16 is exact in f64; half of the distance to the number after the largest is the limit.
    const double sum = static_cast<double>(F16::widen(a[i])) + static_cast<double>(F16::widen(b[i]));
    const double got = F16::widen(out[i]);
    if (std::abs(sum) >= 65520.0) {
      ++overflows;
      REQUIRE(got == std::copysign(std::numeric_limits<double>::infinity(), sum));
    } else {
      if (got == 0) continue;
      const double smaller = F16::widen(out[i] - 1u), larger = F16::widen(out[i] + 1u);
      REQUIRE(std::abs(got - sum) <= std::abs(smaller - sum));
      if (std::isfinite(larger)) REQUIRE(std::abs(got - sum) <= std::abs(larger - sum));
    }
  }
  CHECK(overflows > kElems / 10);
}

TEST_CASE("reduce__keeps_small_parts_beside_a_large_one", "[kernels]") {
  // Eight ranks, bf16: 75,000 and seven small values that a 16-bit accumulator would lose one by one.
  std::vector<std::vector<uint16_t>> in;
  in.push_back(std::vector<uint16_t>(50, static_cast<uint16_t>(BF16::narrow(75000.0f))));
  for (int k = 1; k < 8; ++k) in.push_back(std::vector<uint16_t>(50, static_cast<uint16_t>(BF16::narrow(64.0f))));
  float want = BF16::widen(in[0][0]);
  for (int k = 1; k < 8; ++k) want += 64.0f;
  auto out = reduce_vectors(Type::kBF16, Op::kSum, in);
  CHECK(out[49] == BF16::narrow(want));
  CHECK(out[49] != in[0][0]);

  // The same through two levels of switches: rounded once, so the same bits.
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    std::vector<float> left(50), right(50);
    std::vector<uint16_t> root(50);
    const void* leaves[8];
    for (size_t k = 0; k < 8; ++k) leaves[k] = in[k].data();
    reduce({Type::kBF16, Op::kSum, 4, leaves, 0, left.data(), true, 8, 50});
    reduce({Type::kBF16, Op::kSum, 4, leaves + 4, 0, right.data(), true, 8, 50});
    const void* partials[] = {left.data(), right.data()};
    reduce({Type::kBF16, Op::kSum, 2, partials, 3, root.data(), false, 8, 50});
    CHECK(root == out);
  }
}

TEST_CASE("reduce__keeps_nan_through_min_max_and_narrowing", "[kernels]") {
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    for (Op op : {Op::kMin, Op::kMax}) {
      std::vector<float> a(33, 1e9f), b(33, -2.0f);
      a[7] = std::numeric_limits<float>::quiet_NaN();
      const void* in[] = {a.data(), b.data()};
      std::vector<uint16_t> f16(33);
      std::vector<uint8_t> e4m3(33), e5m2(33);
      reduce({Type::kF16, op, 2, in, 3, f16.data(), false, 1, 33});
      reduce({Type::kE4M3, op, 2, in, 3, e4m3.data(), false, 1, 33});
      reduce({Type::kE5M2, op, 2, in, 3, e5m2.data(), false, 1, 33});
      CHECK(f16[7] == 0x7e00);
      CHECK(e4m3[7] == 0x7f);
      CHECK(e5m2[7] == 0x7f);
      const bool max = op == Op::kMax;
      CHECK(f16[8] == (max ? 0x7c00 : 0xc000));
      CHECK(e4m3[8] == (max ? 0x7f : 0xc0));  // no infinity: NaN
      CHECK(e5m2[8] == (max ? 0x7c : 0xc0));
    }
  }
}

TEST_CASE("reduce__wraps_integers", "[kernels]") {
  using V8 = std::vector<std::vector<int8_t>>;
  CHECK(reduce_vectors(Type::kI8, Op::kSum, V8{{120}, {100}})[0] == -36);
  CHECK(reduce_vectors(Type::kI8, Op::kProd, V8{{-128}, {-128}, {1}})[0] == 0);
  CHECK(reduce_vectors(Type::kI8, Op::kProd, V8{{-7}, {11}})[0] == -77);
  CHECK(reduce_vectors(Type::kI8, Op::kAvg, V8{{120}, {100}}, 2)[0] == -18);  // of the wrapped sum
  using V32 = std::vector<std::vector<int32_t>>;
  CHECK(reduce_vectors(Type::kI32, Op::kSum, V32{{INT32_MAX}, {1}})[0] == INT32_MIN);
  using V64 = std::vector<std::vector<uint64_t>>;
  CHECK(reduce_vectors(Type::kU64, Op::kProd, V64{{0xdeadbeefcafebabe}, {0x123456789abcdef1}})[0] == 0xca165e3e6f4690deu);
}

TEST_CASE("reduce__divides_integers_exactly_toward_zero", "[kernels]") {
  std::mt19937_64 random(6);
  std::vector<uint32_t> divisors{1, 2, 3, 5, 6, 7, 10, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 65535, 65536};
  divisors.insert(divisors.end(), {65537, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xfffffffeu, 0xffffffffu});
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    for (uint32_t divisor : divisors) {
      INFO(target << " by " << divisor);
      auto check = [&](Type type, auto zero, auto wide) {
        using T = decltype(zero);
        using Wide = decltype(wide);
        std::vector<T> values;
        if constexpr (sizeof(T) == 1) {
          for (int v = std::numeric_limits<T>::min(); v <= std::numeric_limits<T>::max(); ++v)
            values.push_back(static_cast<T>(v));
        } else {
          for (int i = 0; i < 200; ++i) {
            const auto any = static_cast<T>(random() >> (random() % 64));
            const auto part = static_cast<uint64_t>(any / static_cast<T>(divisor | 1));
            const auto multiple = static_cast<T>(part * static_cast<uint64_t>(divisor));
            for (T v : {any, static_cast<T>(~any), multiple, static_cast<T>(multiple - 1), static_cast<T>(multiple + 1)}) {
              values.push_back(v);
            }
          }
          values.push_back(std::numeric_limits<T>::min());
          values.push_back(std::numeric_limits<T>::max());
        }
        auto out = reduce_vectors(type, Op::kAvg, std::vector<std::vector<T>>{values}, divisor);
        for (size_t i = 0; i < values.size(); ++i) {
          INFO("value " << static_cast<int64_t>(values[i]));
          REQUIRE(out[i] == static_cast<T>(static_cast<Wide>(values[i]) / static_cast<Wide>(divisor)));
        }
      };
      check(Type::kI8, int8_t{}, int64_t{});
      check(Type::kU8, uint8_t{}, int64_t{});
      check(Type::kI32, int32_t{}, int64_t{});
      check(Type::kU32, uint32_t{}, int64_t{});
      check(Type::kI64, int64_t{}, int64_t{});
      check(Type::kU64, uint64_t{}, uint64_t{});
    }
  }
}

// Blocks that a quantiser with one exponent per block gets wrong.
TEST_CASE("reduce__keeps_zero_tiny_huge_and_special_blocks", "[kernels]") {
  auto block = [](float value) { return std::vector<std::vector<float>>(4, std::vector<float>(64, value)); };
  for (const auto& target : all_targets()) {
    ForcedTarget forced(target);
    auto out = [&](float value) { return reduce_vectors(Type::kF32, Op::kSum, block(value)); };
    auto equals = [](float want) { return [want](float v) { return v == want; }; };
    auto all = [](const std::vector<float>& v, auto f) { return std::all_of(v.begin(), v.end(), f); };
    CHECK(all(out(0.0f), equals(0.0f)));
    CHECK(all(out(1e-35f), equals(4 * 1e-35f)));
    CHECK(all(out(0x1p-149f), equals(0x1p-147f)));
    CHECK(all(out(0x1p125f), equals(0x1p127f)));
    CHECK(all(out(0x1p127f), equals(std::numeric_limits<float>::infinity())));
    CHECK(all(out(std::numeric_limits<float>::infinity()), equals(std::numeric_limits<float>::infinity())));
    CHECK(all(out(std::numeric_limits<float>::quiet_NaN()), [](float v) { return std::bit_cast<uint32_t>(v) == kNanF32; }));
  }
}

TEST_CASE("reduce__ignores_and_restores_the_callers_float_environment", "[kernels]") {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  const unsigned odd = 0x1f80u | 0x8040u | 0x4000u;  // flush to zero, denormals are zero, round up
  std::vector<float> a(70, 0x1p-140f), b(70, 1.0f), out(70);
  const void* in[] = {a.data(), b.data()};
  _mm_setcsr(odd);
  reduce({Type::kF32, Op::kSum, 2, in, 0, out.data(), false, 1, 35});
  const unsigned after = _mm_getcsr();
  const void* twice[] = {a.data(), a.data()};
  reduce({Type::kF32, Op::kSum, 2, twice, 0, out.data() + 35, false, 1, 35});
  _mm_setcsr(before);
  CHECK((after & ~0x3fu) == odd);
  CHECK(out[0] == 1.0f);
  CHECK(out[69] == 0x1p-139f);
#endif
}

TEST_CASE("kernel_targets__names_what_can_be_forced", "[kernels]") {
  auto names = all_targets();
  REQUIRE(!names.empty());
  for (const auto& target : names) CHECK(force_kernel_target(target.c_str()));
  CHECK(!force_kernel_target("no such set"));
  CHECK(force_kernel_target(""));
}
