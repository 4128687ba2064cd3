// What the test sets and counts of the fake GPU (fake_nccl.cc): NCCL and the CUDA driver in one small shared library.
//
// All memory is memory of GPU 0 but for the ranges that are named here. Ranks are threads of this process. Nothing completes
// by itself: each "not yet" is answered a number of times, so whoever does not ask, or acts before he has asked, is found
// out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gatun {

struct FakeGpu {
  static constexpr int kForEver = -1;
  struct Range {
    std::atomic<const std::byte*> begin{nullptr};
    std::atomic<size_t> bytes{0};
    bool holds(unsigned long long address) const {
      return address >= reinterpret_cast<uintptr_t>(begin.load()) &&
             address < reinterpret_cast<uintptr_t>(begin.load()) + bytes.load();
    }
  };

  std::atomic<int> version{22809};
  std::atomic<int> devices{2};
  std::atomic<int> init_result{0};       // of cuInit
  std::atomic<const char*> failing{""};  // the function that fails
  std::atomic<int> async_error{0};       // of every communicator in the middle of a collective
  std::atomic<int> init_polls{3};        // how often a communicator is asked before it is ready
  std::atomic<int> enqueue_polls{2};     // ... a collective before it is on the stream
  std::atomic<int> stream_polls{2};      // ... a stream before it is idle
  std::atomic<bool> end_hangs{false};    // abort and destroy do not return while this is set
  Range host, other_gpu;

  std::atomic<int> created{0}, finalized{0}, destroyed{0}, aborted{0};  // communicators
  std::atomic<int> in_progress{0};                                      // answers
  std::atomic<int> collectives{0}, copies{0};
  std::atomic<int> hanging{0};               // calls that do not return
  std::atomic<int> contexts{0}, streams{0};  // that are not given back
};

using FakeGpuEntry = FakeGpu* (*)();

}  // namespace gatun
