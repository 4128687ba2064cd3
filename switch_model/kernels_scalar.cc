#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "protocols/element_arithmetic.h"
#include "protocols/float_environment.h"
#include "protocols/narrow_floats.h"
#include "switch_model/kernels.h"

// The reference: one element after the other, each type by its definition. Built without contraction into fused operations.

namespace gatun {
namespace {

template <typename T>
T load(const void* from, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(void* to, size_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
}

// Types that reduce in themselves.
template <typename T>
void reduce_wide(const ReduceArgs& args) {
  for (size_t i = 0; i < args.elems; ++i) {
    T value = load<T>(args.in[0], i);
    for (int k = 1; k < args.inputs; ++k) value = apply(args.op, value, load<T>(args.in[k], i));
    if (args.op == Op::kAvg && !args.out_partial) value = divide(value, args.divisor);
    if constexpr (std::is_same_v<T, float>) {
      if (std::isnan(value)) value = std::bit_cast<float>(kNanF32);
    } else if constexpr (std::is_same_v<T, double>) {
      if (std::isnan(value)) value = std::bit_cast<double>(kNanF64);
    }
    store(args.out, i, value);
  }
}

// Types that reduce in f32.
template <typename Format, typename Bits>
void reduce_narrow(const ReduceArgs& args) {
  auto input = [&](int k, size_t i) {
    return (args.partial >> k) & 1 ? load<float>(args.in[k], i) : Format::widen(load<Bits>(args.in[k], i));
  };
  for (size_t i = 0; i < args.elems; ++i) {
    float value = input(0, i);
    for (int k = 1; k < args.inputs; ++k) value = apply(args.op, value, input(k, i));
    if (args.out_partial) {
      store(args.out, i, std::isnan(value) ? std::bit_cast<float>(kNanF32) : value);
    } else {
      if (args.op == Op::kAvg) value = divide(value, args.divisor);
      store(args.out, i, static_cast<Bits>(Format::narrow(value)));
    }
  }
}

}  // namespace

void reduce_scalar(const ReduceArgs& args) {
  FloatEnvironment environment;
  switch (args.type) {
    case Type::kI8: return reduce_wide<int8_t>(args);
    case Type::kU8: return reduce_wide<uint8_t>(args);
    case Type::kI32: return reduce_wide<int32_t>(args);
    case Type::kU32: return reduce_wide<uint32_t>(args);
    case Type::kI64: return reduce_wide<int64_t>(args);
    case Type::kU64: return reduce_wide<uint64_t>(args);
    case Type::kF32: return reduce_wide<float>(args);
    case Type::kF64: return reduce_wide<double>(args);
    case Type::kF16: return reduce_narrow<F16, uint16_t>(args);
    case Type::kBF16: return reduce_narrow<BF16, uint16_t>(args);
    case Type::kE4M3: return reduce_narrow<E4M3, uint8_t>(args);
    case Type::kE5M2: return reduce_narrow<E5M2, uint8_t>(args);
  }
}

}  // namespace gatun
