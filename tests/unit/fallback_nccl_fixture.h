// The fake GPU as the tests of host/fallback/nccl share it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "fake_nccl.h"
#include "fallback_ranks.h"

namespace gatun {

inline const NcclFiles kFake = {GATUN_FAKE_NCCL, GATUN_FAKE_NCCL};

// The fake as it is at first, for a case.
struct Fake {
  FakeGpu& gpu;

  Fake() : gpu(*entry()()) {
    gpu.version = 22809;
    gpu.devices = 2;
    gpu.init_result = gpu.async_error = 0;
    gpu.failing = "";
    gpu.init_polls = 3;
    gpu.enqueue_polls = gpu.stream_polls = 2;
    gpu.end_hangs = false;
    gpu.host.bytes = gpu.other_gpu.bytes = 0;
    gpu.created = gpu.finalized = gpu.destroyed = gpu.aborted = gpu.in_progress = gpu.collectives = gpu.copies = 0;
  }
  FakeGpu* operator->() const { return &gpu; }
  static FakeGpuEntry entry() {
    void* library = ::dlopen(GATUN_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != nullptr);
    auto* function = reinterpret_cast<FakeGpuEntry>(::dlsym(library, "fake_gpu"));
    REQUIRE(function != nullptr);
    return function;
  }
};

inline bool says(const Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

}  // namespace gatun
