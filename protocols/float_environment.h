// FloatEnvironment: round to nearest, keep denormals, raise nothing, until the end of the scope; then as the caller had it.
//
// Applications set flush-to-zero (PyTorch's set_flush_denormal) or a rounding mode in their threads; the bits of a sum must
// not depend on that. Reading the control register costs a few cycles a call; it is written only when it differs.
#pragma once

#include <cstdint>

namespace gatun {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(read()) {
    if ((saved_ & ~kIgnored) != kWanted) write(kWanted);
  }
  ~FloatEnvironment() {
    if ((saved_ & ~kIgnored) != kWanted) write(saved_);
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kWanted = 0x1f80;  // MXCSR: all exceptions masked
  static constexpr uint64_t kIgnored = 0x3f;   // the sticky exception flags
  static uint64_t read() {
    return __builtin_ia32_stmxcsr();
  }
  static void write(uint64_t value) {
    __builtin_ia32_ldmxcsr(static_cast<uint32_t>(value));
  }
#elif defined(__aarch64__)
  static constexpr uint64_t kWanted = 0;  // FPCR
  static constexpr uint64_t kIgnored = 0;
  static uint64_t read() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(uint64_t value) {
    asm volatile("msr fpcr, %0" : : "r"(value) : "memory");
  }
#else
  static constexpr uint64_t kWanted = 0, kIgnored = 0;
  static uint64_t read() {
    return 0;
  }
  static void write(uint64_t) {}
#endif

  uint64_t saved_;
};

}  // namespace gatun
