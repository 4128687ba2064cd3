// What the tests of the reduction kernels share: values worth testing, buffers that end at a forbidden page, and a
// comparison of reduce() with reduce_scalar() on every instruction set of this machine.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "protocols/narrow_floats.h"
#include "switch_model/kernels.h"

namespace gatun {

inline constexpr Type kAllTypes[] = {Type::kI8,  Type::kU8,  Type::kI32, Type::kU32,  Type::kI64,  Type::kU64,
                                     Type::kF16, Type::kF32, Type::kF64, Type::kBF16, Type::kE4M3, Type::kE5M2};
inline constexpr Op kAllOps[] = {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg};

inline bool is_narrow(Type type) {
  return partial_type(type) != type;
}

inline std::vector<std::string> all_targets() {
  const char* names[16];
  const int count = kernel_targets(names, 16);
  return {names, names + count};
}

// Forces an instruction set for a scope.
class ForcedTarget {
 public:
  explicit ForcedTarget(const std::string& name) { REQUIRE(force_kernel_target(name.c_str())); }
  ~ForcedTarget() { force_kernel_target(""); }
};

// Buffers between pages that may not be touched, so that one byte read or written too far ends the test.
class GuardedBuffers {
 public:
  GuardedBuffers(size_t count, size_t bytes_max) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    inner_ = (bytes_max + page - 1) / page * page;
    stride_ = inner_ + page;
    mapped_ = count * stride_ + page;
    void* base = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base != MAP_FAILED);
    base_ = static_cast<uint8_t*>(base);
    first_ = base_ + page;
    for (size_t k = 0; k < count; ++k) REQUIRE(mprotect(first_ + k * stride_, inner_, PROT_READ | PROT_WRITE) == 0);
  }
  ~GuardedBuffers() { munmap(base_, mapped_); }
  GuardedBuffers(const GuardedBuffers&) = delete;
  GuardedBuffers& operator=(const GuardedBuffers&) = delete;

  uint8_t* at_start(size_t k) { return first_ + k * stride_; }
  uint8_t* at_end(size_t k, size_t bytes) { return at_start(k) + inner_ - bytes; }

 private:
  uint8_t *base_, *first_;
  size_t inner_, stride_, mapped_;
};

// The bits of one element that is likely to show a fault: zeros of both signs, denormals, largest, infinities, NaNs with
// payload, numbers of like size, and any bits at all.
class Values {
 public:
  explicit Values(uint32_t seed) : random_(seed) {}

  uint64_t bits(Type type) {
    const uint64_t any = random_();
    const unsigned kind = static_cast<unsigned>(any >> 60);
    const uint64_t noise = random_();
    switch (type) {
      case Type::kF32: return format<8, 23>(kind, noise);
      case Type::kF64: return format<11, 52>(kind, noise);
      case Type::kF16: return format<5, 10>(kind, noise);
      case Type::kBF16: return format<8, 7>(kind, noise);
      case Type::kE4M3: return format<4, 3>(kind, noise);
      case Type::kE5M2: return format<5, 2>(kind, noise);
      default: return kind == 0 ? 0 : kind == 1 ? ~uint64_t{0} : kind == 2 ? edge(type, noise) : noise;
    }
  }
  void fill(Type type, uint8_t* to, size_t elems) {
    for (size_t i = 0; i < elems; ++i) {
      const uint64_t value = bits(type);
      std::memcpy(to + i * elem_bytes(type), &value, elem_bytes(type));
    }
  }

 private:
  static uint64_t edge(Type type, uint64_t noise) {
    const uint64_t top = uint64_t{1} << (8 * elem_bytes(type) - 1);
    return noise & 1 ? top : top - 1;
  }
  template <int kExp, int kMan>
  uint64_t format(unsigned kind, uint64_t noise) {
    constexpr uint64_t kSign = uint64_t{1} << (kExp + kMan), kExponents = ((uint64_t{1} << kExp) - 1) << kMan;
    constexpr uint64_t kMantissas = (uint64_t{1} << kMan) - 1, kOne = ((uint64_t{1} << (kExp - 1)) - 1) << kMan;
    const uint64_t sign = noise & kSign;
    switch (kind) {
      case 0: return sign;                                                                        // zero
      case 1: return sign | (noise & kMantissas);                                                 // denormal
      case 2: return sign | ((kExponents - 1) & (~uint64_t{0} << (noise >> 61)));                 // about the largest
      case 3: return noise >> 63 ? sign | kExponents : sign | kExponents | (noise & kMantissas);  // infinity or NaN
      case 4: return noise & (kSign | kExponents | kMantissas);                                   // anything
      case 5: return sign | kOne;
      default: return sign | (kOne + (((noise >> 58) % 4) << kMan)) | (noise & kMantissas);
    }
  }
  std::mt19937_64 random_;
};

// One call, without its buffers.
struct Case {
  Type type = Type::kF32;
  Op op = Op::kSum;
  int inputs = 1;
  uint64_t partial = 0;
  bool out_partial = false;
  uint32_t divisor = 1;
  size_t elems = 0;

  size_t in_bytes(int k) const { return elems * elem_bytes((partial >> k) & 1 ? partial_type(type) : type); }
  size_t out_bytes() const { return elems * elem_bytes(out_partial ? partial_type(type) : type); }
  ReduceArgs args(const void* const* in, void* out) const {
    return {type, op, inputs, in, partial, out, out_partial, divisor, elems};
  }
  std::string text() const {
    return std::string(name(type)) + " " + name(op) + ", inputs " + std::to_string(inputs) + ", partial " +
           std::to_string(partial) + (out_partial ? ", to partial" : "") + ", divisor " + std::to_string(divisor) +
           ", elems " + std::to_string(elems);
  }
};

// Runs a case with the reference, and on every instruction set at both ends of guarded buffers, with values made from seed.
class Comparison {
 public:
  explicit Comparison(size_t elems_max)
      : buffers_(kReduceInputsMax + 2, 8 * elems_max),
        targets_(all_targets()),
        want_(8 * elems_max),
        start_(8 * elems_max) {}

  void run(const Case& c, uint32_t seed) {
    INFO(c.text() << ", seed " << seed);
    for (const bool at_end : {true, false}) {
      Values values(seed);
      const void* in[kReduceInputsMax];
      for (int k = 0; k < c.inputs; ++k) {
        const auto index = static_cast<size_t>(k);
        uint8_t* buffer = at_end ? buffers_.at_end(index, c.in_bytes(k)) : buffers_.at_start(index);
        values.fill((c.partial >> k) & 1 ? partial_type(c.type) : c.type, buffer, c.elems);
        in[k] = buffer;
      }
      reduce_scalar(c.args(in, want_.data()));
      uint8_t* out = at_end ? buffers_.at_end(kReduceInputsMax, c.out_bytes()) : buffers_.at_start(kReduceInputsMax);
      for (const auto& target : targets_) {
        ForcedTarget forced(target);
        std::memset(out, 0x5b, c.out_bytes());
        reduce(c.args(in, out));
        check(c, target, out);
      }
    }
  }

  // The same with the output over input k, which must have elements of the same size.
  void run_in_place(const Case& c, int k, uint32_t seed) {
    INFO(c.text() << ", in place of " << k << ", seed " << seed);
    REQUIRE(c.in_bytes(k) == c.out_bytes());
    Values values(seed);
    const void* in[kReduceInputsMax];
    for (int i = 0; i < c.inputs; ++i) {
      uint8_t* buffer = buffers_.at_end(static_cast<size_t>(i), c.in_bytes(i));
      values.fill((c.partial >> i) & 1 ? partial_type(c.type) : c.type, buffer, c.elems);
      in[i] = buffer;
    }
    reduce_scalar(c.args(in, want_.data()));
    uint8_t* out = buffers_.at_end(static_cast<size_t>(k), c.out_bytes());
    std::memcpy(start_.data(), out, c.out_bytes());
    for (const auto& target : targets_) {
      ForcedTarget forced(target);
      std::memcpy(out, start_.data(), c.out_bytes());
      reduce(c.args(in, out));
      check(c, target, out);
    }
  }

 private:
  void check(const Case& c, const std::string& target, const uint8_t* out) {
    if (std::memcmp(out, want_.data(), c.out_bytes()) == 0) return;
    const size_t size = c.elems ? c.out_bytes() / c.elems : 1;
    size_t i = 0;
    while (std::memcmp(out + i * size, want_.data() + i * size, size) == 0) ++i;
    uint64_t got = 0, want = 0;
    std::memcpy(&got, out + i * size, size);
    std::memcpy(&want, want_.data() + i * size, size);
    INFO(target << ": element " << i << std::hex << ": got 0x" << got << ", want 0x" << want);
    FAIL();
  }

  GuardedBuffers buffers_;
  std::vector<std::string> targets_;
  std::vector<uint8_t> want_, start_;
};

}  // namespace gatun
