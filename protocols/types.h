// Element types, reduction operators and collectives: the vocabulary every layer shares.
//
// The numeric values are wire values and C ABI values at once (include/gatun/gatun.h repeats them). Types and operators
// use NCCL's numbers, so that a plugin passes them through unchanged.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gatun {

enum class Type : uint8_t {
  kI8 = 0,
  kU8 = 1,
  kI32 = 2,
  kU32 = 3,
  kI64 = 4,
  kU64 = 5,
  kF16 = 6,
  kF32 = 7,
  kF64 = 8,
  kBF16 = 9,
  kE4M3 = 10,
  kE5M2 = 11,
};
inline constexpr int kTypes = 12;

enum class Op : uint8_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };
inline constexpr int kOps = 5;

enum class Collective : uint8_t { kAllReduce = 0, kReduceScatter, kAllGather, kBroadcast, kReduce, kBarrier };
inline constexpr int kCollectives = 6;

// Bytes of one element.
constexpr size_t elem_bytes(Type type) {
  switch (type) {
    case Type::kI8: case Type::kU8: case Type::kE4M3: case Type::kE5M2: return 1;
    case Type::kF16: case Type::kBF16: return 2;
    case Type::kI32: case Type::kU32: case Type::kF32: return 4;
    case Type::kI64: case Type::kU64: case Type::kF64: return 8;
  }
  return 0;
}

// The type in which a partial sum travels between switches: f32 for the narrow floats, so that they are rounded once.
constexpr Type partial_type(Type type) {
  switch (type) {
    case Type::kF16: case Type::kBF16: case Type::kE4M3: case Type::kE5M2: return Type::kF32;
    default: return type;
  }
}

constexpr bool valid_type(unsigned value) { return value < kTypes; }
constexpr bool valid_op(unsigned value) { return value < kOps; }

// Short names as users type and read them: "f32", "bf16", "f8e4m3", "sum", "allreduce".
const char* name(Type type);
const char* name(Op op);
const char* name(Collective collective);

}  // namespace gatun
