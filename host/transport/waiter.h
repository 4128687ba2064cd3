// Waiter: blocks one thread until one of its transports has something, another thread calls wake(), or time is up.
// Backoff: when a loop that finds no work should block.
//
// The descriptors are watched edge-triggered and nothing is read from them after a wake-up. wake() costs a system call only
// if the thread sleeps (or is about to), else one atomic exchange. Invariant: a wake() or an arrival after the last look at
// the transports is never slept through, because each side announces itself before it looks at the other.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/base/os.h"
#include "host/transport/transport.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class Waiter {
 public:
  static Result<std::unique_ptr<Waiter>> make();

  // The thread that waits; not during wait(). The transport must outlive its membership.
  Status add(Transport* transport);
  void remove(Transport* transport);

  // Returns when there may be something to do: at once if a transport has packets or wake() was called since the last wait,
  // else after at most timeout (kNever: no limit; <= 0: does not sleep). A return without cause is possible.
  void wait(TimeNs timeout);

  // Any thread. Makes the current wait() return, or the next one.
  void wake();

  uint64_t sleeps() const { return sleeps_; }  // waits that did block

 private:
  enum State : uint32_t { kAwake, kWoken, kAsleep };

  Waiter(Fd epoll, Fd event) : epoll_(std::move(epoll)), event_(std::move(event)) {}
  bool prepare(size_t* prepared);
  void block(TimeNs timeout);

  Fd epoll_;
  Fd event_;
  std::vector<Transport*> transports_;
  std::atomic<uint32_t> state_{kAwake};
  bool have_pwait2_ = true;
  uint64_t sleeps_ = 0;
};

// About 64 pauses, a few yields, then block. With busy polling it never says block, but still yields now and then, so that
// more pollers than cores do not starve each other.
class Backoff {
 public:
  explicit Backoff(bool busy_poll = false) : busy_poll_(busy_poll) {}

  void reset() { idle_rounds_ = 0; }  // work was found

  // Call once for each round without work. True: block now, then reset().
  bool idle() {
    if (++idle_rounds_ <= kPauses) {
      pause();
      return false;
    }
    if (busy_poll_) {
      if (idle_rounds_ % kBusyYieldRounds == 0) ::sched_yield();
      if (idle_rounds_ == UINT32_MAX) idle_rounds_ = kPauses;
      return false;
    }
    if (idle_rounds_ <= kPauses + kYields) {
      ::sched_yield();
      return false;
    }
    return true;
  }

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  static constexpr uint32_t kPauses = 64, kYields = 4, kBusyYieldRounds = 1024;

  bool busy_poll_;
  uint32_t idle_rounds_ = 0;
};

}  // namespace gatun
