// Request: one operation between its call and its completion, and the pool that requests come from.
//
// Life: free -> pending (the lane has it) -> done (the owner of the handle has it, or the pool again when there is no
// handle). The state is the only field that two threads touch at once: the driving thread stores kDone last, the waiter
// loads it first.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/lib/operation.h"
#include "protocols/contract.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

struct Request {
  enum State : uint32_t { kFree, kPending, kDone };
  using Done = void (*)(void* context, int code, const char* error);

  std::atomic<uint32_t> state{kFree};
  void* owner = nullptr;  // the communicator
  Contract contract;
  const void* send = nullptr;
  void* recv = nullptr;
  Operation operation;  // on the switch: its geometry is that of the latest path
  uint32_t number = 0;   // of the operation, once the datapath has it
  uint32_t ordinal = 0;  // the same counted from the job's first, for sentences
  TimeNs deadline = kNever;
  TimeNs started_at = 0;
  TimeNs timeout = 0;       // as the caller gave it, for the sentence
  TimeNs warn_at = kNever;  // stall warning, once
  TimeNs ask_at = kNever;   // ask the controller about the late ranks, once
  bool submitted = false;   // the datapath has it
  bool refused = false;     // ranks disagree; waits for the controller's sentence until the deadline
  bool detached = false;    // no handle: the pool takes it back on completion
  Done done = nullptr;
  void* context = nullptr;
  Status status;            // final once kDone
  Request* next = nullptr;  // in the free list
};

// Grows only when more than it holds are in the hands of callers; never shrinks. The lane's mutex guards it.
class RequestPool {
 public:
  explicit RequestPool(uint32_t first) { grow(first); }

  Request* take() {
    if (!free_) grow(kGrowth);
    Request* request = free_;
    free_ = request->next;
    ++taken_;
    return request;
  }
  void give(Request* request) {
    request->state.store(Request::kFree, std::memory_order_relaxed);
    request->next = free_;
    free_ = request;
    --taken_;
  }
  uint32_t taken() const { return taken_; }

 private:
  static constexpr uint32_t kGrowth = 256;
  void grow(uint32_t count) {
    blocks_.push_back(std::make_unique<Request[]>(count));
    for (uint32_t i = 0; i < count; ++i) {
      Request* request = &blocks_.back()[i];
      request->next = free_;
      free_ = request;
    }
  }

  std::vector<std::unique_ptr<Request[]>> blocks_;
  Request* free_ = nullptr;
  uint32_t taken_ = 0;
};

}  // namespace gatun
