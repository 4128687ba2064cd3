// One collective in flight: a c10d::Work over a gatun request.
//
// Life: Tracker::open -> gatun_i* -> started -> on_done (from the thread that made the progress) -> complete -> settled.
// complete() copies results out, runs Python callbacks of the future and drops the tensors; that must not happen in the
// thread that makes the progress. It is done by whoever claims the work first: a thread in wait(), which drives the
// communicator itself meanwhile, or else the tracker's own thread. A barrier is settled when it is complete and all
// collectives before it are.
//
// Signals: a wait in Python's main thread runs the handlers of signals within kSlice. When one raises, as Ctrl-C does, the
// wait ends with that exception and nothing else does: the operation goes on, and can be waited for again.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gatun/gatun.h"
#include "host/plugins/torch/ext/compat.h"

namespace gatun_torch {

class Tracker;

// Until when something waits, in slices.
class Deadline {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  static constexpr Milliseconds kSlice{100};

  explicit Deadline(Milliseconds timeout) : bounded_(timeout != kNoTimeout), until_(Clock::now() + timeout) {}
  explicit Deadline(Clock::time_point until) : bounded_(true), until_(until) {}
  bool over() const { return bounded_ && Clock::now() >= until_; }
  Milliseconds slice() const { return bounded_ ? std::min(left(), kSlice) : kSlice; }
  Milliseconds timeout() const { return bounded_ ? left() : kNoTimeout; }

 private:
  Milliseconds left() const {  // at least 1 ms: PyTorch takes 0 for no limit
    return std::max(std::chrono::duration_cast<Milliseconds>(until_ - Clock::now()), Milliseconds(1));
  }
  const bool bounded_;
  const Clock::time_point until_;
};

// Between two slices: runs the handlers of signals if this is Python's main thread; throws what they raise.
void run_signal_handlers();

// What to run and what it touches.
struct Collective {
  c10d::OpType type;
  const char* title;                // "gatun:all_reduce", as the profiler shows it
  std::vector<at::Tensor> inputs;   // kept alive until completion
  std::vector<at::Tensor> outputs;  // the result of the Work and its future
  at::Tensor buffer;                // kept alive too, if there is one
  std::function<void()> unpack;     // copies results out; may be empty
  uint64_t tag = 0;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
};

class Work final : public c10d::Work {
 public:
  Work(std::shared_ptr<Tracker> tracker, uint64_t sequence, std::string name, Collective collective, int rank,
       std::chrono::milliseconds timeout);
  ~Work() override;

  std::vector<at::Tensor> result() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const;
  std::chrono::milliseconds getTimeout() const;

 private:
  friend class Tracker;

  static void on_done(void* context, int code, const char* error);
  void started(gatun_request_t request);
  bool claim();  // true once: the caller must call complete()
  // Makes progress until it is done and complete, the time is up, or if another thread does so already.
  void drive(const Deadline& deadline);
  bool drive_slice(const Deadline& deadline);  // true if the caller should go on
  void complete();
  void settle();

  const std::shared_ptr<Tracker> tracker_;
  const uint64_t sequence_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  Collective collective_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;

  // All below: mutex_ of the base class.
  gatun_request_t request_ = nullptr;
  bool started_ = false;  // request_ is set
  bool done_ = false;     // code_ and error_ are set
  bool driven_ = false;   // a thread is in drive()
  bool claimed_ = false;
  int code_ = 0;
  std::string error_;
  std::condition_variable changed_;
  std::exception_ptr failure_;

  // Tracker's mutex.
  int waits_for_ = 1;                                 // itself, and for a barrier the collectives before it
  std::vector<c10::intrusive_ptr<Work>> before_;      // of a barrier
  std::vector<c10::intrusive_ptr<Work>> dependents_;  // barriers that wait for this
  std::list<c10::intrusive_ptr<Work>>::iterator place_;
  bool open_ = false;
};

// The works in flight of one group, and the threads that complete those nobody waits for: one, and one more for each
// callback that is itself waiting.
class Tracker final : public std::enable_shared_from_this<Tracker> {
 public:
  Tracker(gatun_comm_t comm, int rank, int size, std::string group);

  gatun_comm_t comm() const { return comm_; }

  // Starts an operation; start gets the call options and the request and returns gatun's code. Throws when it is refused.
  using Start = std::function<int(const gatun_call_t*, gatun_request_t*)>;
  WorkPtr submit(Collective collective, std::chrono::milliseconds timeout, bool after_all, const Start& start);
  // Collectives that run elsewhere: a barrier waits for them too.
  void note_foreign(const WorkPtr& work);
  // True if none is left. run_between: run between two looks; what it throws ends the wait.
  bool wait_foreign(std::chrono::milliseconds timeout, void (*run_between)());

  uint64_t sequence() const;
  size_t in_flight() const;
  bool wait_idle(std::chrono::milliseconds timeout);
  // Fails later submissions with this sentence.
  void close(std::string why);
  void complete_without_threads();  // in this thread what none could be made for
  // Ends the threads; nothing may be in flight. One whose callback takes longer ends behind it.
  void stop(std::chrono::milliseconds timeout);

  void check_open(const std::string& what) const;
  [[noreturn]] void fail(const std::string& what, int code, const std::string& error) const;
  std::exception_ptr failure(const std::string& what, int code, const std::string& error) const;

 private:
  friend class Work;

  void hand_over(c10::intrusive_ptr<Work> work);
  void keep_one_free();
  void retire(Work& work);
  void run();

  const gatun_comm_t comm_;
  const int rank_, size_;
  const std::string group_;

  std::mutex submit_mutex_;  // order of calls = order of sequence numbers
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  uint64_t sequence_ = 0;
  std::string closed_;  // why; empty while open
  std::list<c10::intrusive_ptr<Work>> in_flight_;
  std::list<WorkPtr> foreign_;
  std::deque<c10::intrusive_ptr<Work>> to_complete_;
  int threads_ = 0;  // all, and those that could take a work
  int free_threads_ = 0;
  bool stopping_ = false;
};

// Several works as one.
class Bundle final : public c10d::Work {
 public:
  Bundle(int rank, std::vector<WorkPtr> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace gatun_torch
