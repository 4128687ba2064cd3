// Lane: lets threads share one Datapath. Calls queue operations; whoever waits drives the datapath in its own thread; a
// background thread drives only while asynchronous operations are pending and nobody else does.
//
// One thread at a time holds the token (driving_): it alone touches the datapath. The mutex guards everything else and is
// held for a few instructions, never during a turn or a callback. Operations have the order in which start() took the mutex.
//
// Invariant: while anything is pending, a thread drives, or a waiter or the background thread has been told to.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.h"
#include "host/base/os.h"
#include "host/lib/datapath.h"
#include "host/lib/request.h"
#include "host/transport/waiter.h"

namespace gatun {

class Lane {
 public:
  // What the lane has to say to the controller. Called by the driving thread, without locks; must not block.
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_refused(uint32_t op, const Contract& contract) = 0;  // this rank's contract under a refused number
    virtual void on_stalled(uint32_t op, uint64_t missing_ranks) = 0;    // what does the controller know of them?
    virtual void on_timed_out(const Status& status) = 0;                 // this rank gives up
  };

  struct Config {
    Operation::Geometry geometry;
    TimeNs timeout = 30 * kSecond;
    TimeNs stall_warning = 5 * kSecond;  // 0: never
    bool busy_poll = false;
    std::string switch_name;  // for sentences: "127.0.0.1:7117"
  };

  struct Call {
    TimeNs timeout = 0;  // 0: the lane's
    Request::Done done = nullptr;
    void* context = nullptr;
  };

  struct Stats {
    TransportStats transport;  // sums over the links
    uint64_t resent = 0, marked = 0, dropped = 0, operations = 0;
  };

  // events and log outlive the lane.
  Lane(Config config, Datapath datapath, std::unique_ptr<Waiter> waiter, Events* events, const Log* log);
  // Nothing may be pending but what fail() ends.
  ~Lane();

  // Any thread. Queues an operation and makes one turn if nobody else drives. request null: call.done is told, nobody waits.
  Status start(const Contract& contract, const void* send, void* recv, const Call& call, Request** request);
  // Queues an operation and drives until it is done.
  Status run(const Contract& contract, const void* send, void* recv);
  // True once done; makes one turn if nobody else drives.
  bool test(Request* request);
  // Drives until the request is done (true) or the time has come.
  bool wait(Request* request, TimeNs until);
  // After done: its status; the request is free.
  Status take(Request* request);
  // Drives until nothing is pending.
  void drain();

  // Any thread. Everything pending and everything later ends with this status; only the first call counts.
  void fail(Status status);
  Status failure() const;
  // What the controller said.
  void on_mismatch(uint32_t op, std::string text);
  void on_stall_text(uint32_t op, std::string text);
  void on_left(uint32_t started, std::string text);

  Stats stats();
  // Operations taken by start(), and those of them that are done.
  uint32_t started() const { return started_.load(std::memory_order_relaxed); }
  uint32_t finished() const { return finished_.load(std::memory_order_relaxed); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Note {
    uint32_t op = 0;
    std::string text;
  };

  // Calls.
  Status queue(Lock& lock, const Contract& contract, const void* send, void* recv, const Call& call, Request** request);
  template <typename Until>
  void await(Lock& lock, Until until, TimeNs deadline);
  void hand_over(Lock& lock);
  void turn_once(Lock& lock);
  Status start_background(Lock& lock);

  // The token's holder.
  template <typename Until>
  void drive(Until until, TimeNs deadline);
  bool turn(TimeNs now);
  void take_inbox();
  void take_refusals(TimeNs now);
  bool settle();
  void finish(std::span<Request* const> requests);
  void end_everything(const Status& failure);
  void check_deadlines(TimeNs now);
  TimeNs check(Request* request, TimeNs now);
  void time_out(const Request& request, TimeNs now);
  void check_left();
  void end_refused(uint32_t op, const std::string& text);
  void rest(TimeNs now, TimeNs deadline);
  Stats gather_stats() const;

  void background();

  const Config config_;
  Datapath datapath_;
  std::unique_ptr<Waiter> waiter_;
  Events* const events_;
  const Log* const log_;

  mutable std::mutex mutex_;
  std::condition_variable turn_over_;  // a request is done, or the token is free
  std::condition_variable background_;
  RequestPool pool_;
  std::array<Request*, kOperationsMax> queue_;  // ring of what start() took and the datapath has not
  uint32_t queue_head_ = 0, queue_tail_ = 0;
  uint32_t waiting_ = 0;  // threads in turn_over_
  bool driving_ = false;
  bool background_drives_ = false;
  bool stop_ = false;
  Status failure_;
  std::vector<Note> mismatches_;  // inbox
  Note stall_text_;
  Note left_;  // of the ranks that left in order, the one that took part in the fewest operations (op: so many)
  bool any_left_ = false;
  bool stats_wanted_ = false;
  Stats stats_;
  std::thread thread_;  // background(); started by the first operation that needs it

  std::atomic<uint32_t> pending_{0};  // started and not done; changed under the mutex
  std::atomic<uint32_t> takers_{0};   // threads that want the background thread to let go
  std::atomic<bool> inbox_{false};    // take_inbox() has something to do
  std::atomic<uint32_t> started_{0}, finished_{0};

  // The token's holder.
  std::vector<Request*> refused_;  // wait for the controller's sentence
  TimeNs next_check_ = kNever;
  bool failed_ = false;
};

}  // namespace gatun
