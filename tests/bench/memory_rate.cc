// memory_rate: what the core it runs on reads and writes per second when it does what a switch must do and nothing else:
// read four arrays from memory and write one. Prints bytes per second, both directions together; the median of some passes.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/bench/kernels_floor.h"

namespace {

constexpr int kInputs = 4, kPasses = 9;
constexpr size_t kArrayBytes = size_t{64} << 20;  // more than any cache keeps

double seconds_of_pass(std::byte* memory) {
  const void* inputs[kInputs];
  for (size_t i = 0; i < kInputs; ++i) inputs[i] = memory + i * kArrayBytes;
  const auto begin = std::chrono::steady_clock::now();
  gatun::read_and_write(inputs, kInputs, memory + kInputs * kArrayBytes, kArrayBytes);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main() {
  constexpr size_t kBytes = (kInputs + 1) * kArrayBytes;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("memory_rate: cannot map memory");
    return 1;
  }
  madvise(memory, kBytes, MADV_HUGEPAGE);
  std::memset(memory, 1, kBytes);
  std::vector<double> passes;
  for (int i = 0; i < kPasses; ++i) passes.push_back(seconds_of_pass(static_cast<std::byte*>(memory)));
  std::nth_element(passes.begin(), passes.begin() + kPasses / 2, passes.end());
  std::printf("%.0f\n", static_cast<double>(kBytes) / passes[kPasses / 2]);
  return 0;
}
