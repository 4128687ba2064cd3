// Elements of every type from small numbers, and a plain reference for every collective on them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gatun/gatun.h"
#include "protocols/types.h"

namespace gatun {

// Rounds to nearest even into a float of so many exponent and fraction bits. For numbers in its normal range.
inline uint32_t encode_float(double value, int exponent_bits, int fraction_bits) {
  if (value == 0) return 0;
  const uint32_t sign = value < 0 ? 1u << (exponent_bits + fraction_bits) : 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  auto scaled = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, fraction_bits + 1)));
  if (scaled >> (fraction_bits + 1)) {
    scaled >>= 1;
    ++exponent;
  }
  const auto biased = static_cast<uint32_t>(exponent - 1 + (1 << (exponent_bits - 1)) - 1);
  return sign | biased << fraction_bits | (scaled & ((1u << fraction_bits) - 1));
}

inline void put_element(std::byte* at, Type type, double value) {
  const auto put = [at](auto element) { std::memcpy(at, &element, sizeof element); };
  switch (type) {
    case Type::kI8: return put(static_cast<int8_t>(value));
    case Type::kU8: return put(static_cast<uint8_t>(value));
    case Type::kI32: return put(static_cast<int32_t>(value));
    case Type::kU32: return put(static_cast<uint32_t>(value));
    case Type::kI64: return put(static_cast<int64_t>(value));
    case Type::kU64: return put(static_cast<uint64_t>(value));
    case Type::kF16: return put(static_cast<uint16_t>(encode_float(value, 5, 10)));
    case Type::kF32: return put(static_cast<float>(value));
    case Type::kF64: return put(value);
    case Type::kBF16: return put(static_cast<uint16_t>(encode_float(value, 8, 7)));
    case Type::kE4M3: return put(static_cast<uint8_t>(encode_float(value, 4, 3)));
    case Type::kE5M2: return put(static_cast<uint8_t>(encode_float(value, 5, 2)));
  }
}

// Rank's element i of round `salt`: 0 to 4. The ranks' values stand around a common middle, so that averages are whole.
inline double input_value(int rank, int ranks, uint64_t i, uint64_t salt) {
  const auto middle = static_cast<double>(1 + (i * 2654435761u + salt) % 3);
  if (ranks % 2 == 1 && rank == ranks - 1) return middle;
  return middle + (rank % 2 == 0 ? -1 : 1);
}

// Rank's element i, in [-1, 1), with a sum that is another in every order of addition.
float rough_value(int rank, uint64_t i, uint64_t salt);

inline double reduced_value(int ranks, uint64_t i, uint64_t salt, Op op) {
  double result = input_value(0, ranks, i, salt);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = input_value(rank, ranks, i, salt);
    switch (op) {
      case Op::kSum:
      case Op::kAvg: result += value; break;
      case Op::kProd: result *= value; break;
      case Op::kMax: result = std::max(result, value); break;
      case Op::kMin: result = std::min(result, value); break;
    }
  }
  return op == Op::kAvg ? result / ranks : result;
}

// Bytes with room before and after, at any alignment; the room must stay untouched.
class Guarded {
 public:
  Guarded(size_t bytes, size_t misalign) : bytes_(bytes), begin_(64 + misalign), memory_(bytes + 192, kGuard) {}
  std::byte* data() { return memory_.data() + begin_; }
  size_t size() const { return bytes_; }
  bool intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kGuard{0xa5};
  size_t bytes_, begin_;
  std::vector<std::byte> memory_;
};

// Values with rough_value(), of an all-reduce of f32 with sum: checked for about the sum, or for that in the order of ranks.
enum class Rough : uint8_t { kNo, kClose, kExact };

struct Case {
  Collective collective = Collective::kAllReduce;
  Type type = Type::kF32;
  Op op = Op::kSum;
  uint64_t count = 1;
  int root = 0;
  bool in_place = false;
  size_t misalign = 0;
  uint64_t salt = 0;
  Rough rough = Rough::kNo;
};

std::string text(const Case& c);
Case random_case(std::mt19937_64& random, int ranks, uint64_t count_max);

// One collective call with its buffers: runs it (blocking, or started and to be waited for) and checks every byte.
class Exercise {
 public:
  Exercise(const Case& c, int rank, int ranks);
  int run(gatun_comm_t comm);
  int start(gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request);
  std::string verify();     // after success
  std::string untouched();  // after failure: the receive buffer is as it was
  uint64_t digest();        // after success: of what all ranks must have alike, 0 if there is no such thing

 private:
  const std::byte* send() { return case_.in_place ? in_place_send() : send_.data(); }
  const std::byte* in_place_send();
  void fill(std::byte* at, uint64_t first, uint64_t count, int rank);
  std::string verify_rough();
  Case case_;
  int rank_, ranks_;
  size_t elem_;
  Guarded send_, recv_;
};

}  // namespace gatun
