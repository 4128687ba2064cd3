// Lane: lets threads share a communicator's paths. Calls queue operations; on the switch whoever waits drives the datapath
// in its own thread, and a background thread drives only while asynchronous operations are pending and nobody else does. Off
// the switch the background thread alone does everything, one operation at a time (lane_ring.cc).
//
// One thread at a time holds the token (driving_): it alone touches the datapath. The mutex guards everything else and is
// held for a few instructions, never during a turn or a callback. Operations have the order in which start() took the mutex.
//
// Invariant: while anything is pending, a thread drives, or a waiter or the background thread has been told to.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.h"
#include "host/base/os.h"
#include "host/lib/datapath.h"
#include "host/lib/registrations.h"
#include "host/lib/request.h"
#include "host/lib/ring.h"
#include "host/lib/switch_path.h"
#include "protocols/path.h"

namespace gatun {

class Lane final : private SwitchPath::Events, private Mesh::Events {
 public:
  struct Config {
    uint32_t rank = 0, ranks = 1;
    TimeNs timeout = 30 * kSecond;
    TimeNs stall_warning = 5 * kSecond;  // 0: never
    TimeNs detect = 500 * kMs;           // of a dead switch
    bool busy_poll = false;
  };

  struct Call {
    TimeNs timeout = 0;  // 0: the lane's
    Request::Done done = nullptr;
    void* context = nullptr;
  };

  struct Stats {
    TransportStats transport;  // sums over all links so far
    uint64_t resent = 0, marked = 0, dropped = 0, operations = 0;
    uint64_t ring_operations = 0;  // of those, the ones that the ring has done, wholly or in part
    uint64_t failovers = 0;        // from the switch to the ring
    uint64_t ring_bytes = 0;       // sent and received without the switch
    uint64_t copied_bytes = 0;     // of payloads on the way through the switch
  };

  // What gatun_comm_stats says of the present.
  struct Present {
    SwitchPath::Facts path;  // of the latest switch epoch
    bool on_switch = false;
    std::string why;  // not on the switch
  };

  // path null: it begins on the ring, for the reason `why`. ring null: there is none; without its switch the job ends.
  Lane(Config config, std::unique_ptr<SwitchPath> path, std::unique_ptr<Ring> ring, std::string why, const Log* log);
  // Nothing may be pending but what fail() ends.
  ~Lane() override;
  // Starts to listen to the controller and the other ranks. Once.
  Status run_paths();

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
  // Drives until nothing is pending (true) or the time has come.
  bool drain(TimeNs deadline);
  // This thread is inside a done function, and what it waited for there would wait for it.
  static bool in_done();

  // Any thread. Not ok: everything pending and everything later ends with it.
  Status failure() const;
  // Fails, and tells the other ranks; only the first call counts.
  void give_up_job(const std::string& reason);
  // Tells them that this rank leaves in order. Nothing may follow but destruction.
  void leave();

  // For whoever looks for a switch while the lane is on the ring: waits until one is wanted (true), or stop_seeking().
  bool wait_wanted();
  void stop_seeking();
  // A path whose job has started: the ranks go over to it when all have one.
  void offer(std::unique_ptr<SwitchPath> path);

  // Any thread. Memory that the path in use, and later ones, may read without a copy. What that needs is said by the error;
  // operations work all the same. Waits for a turn to end.
  Status register_memory(std::span<std::byte> memory);
  // Afterwards no path reads it.
  Status deregister_memory(const void* address);

  Stats stats();
  Present present() const;
  // Operations taken by start(), and those of them that are done.
  uint32_t started() const { return started_.load(std::memory_order_relaxed); }
  uint32_t finished() const { return finished_.load(std::memory_order_relaxed); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr const char* kGaveUp = " gave up: ";
  struct Note {
    uint32_t op = 0;
    std::string text;
  };
  // What another thread than the token's holder wants done with the path, under the mutex.
  struct Errand {
    const std::function<void()>* work = nullptr;
    bool done = false;
  };

  // Calls.
  Status queue(Lock& lock, const Contract& contract, const void* send, void* recv, const Call& call, Request** request);
  template <typename Until>
  void await(Lock& lock, Until until, TimeNs deadline);
  void hand_over(Lock& lock);
  void turn_once(Lock& lock);
  Status start_background(Lock& lock);
  void between_turns(Lock& lock, const std::function<void()>& work);
  void run_errands();
  void lend_all(Lock& lock);

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
  TimeNs check(Request* request, bool oldest, TimeNs now);
  bool take_warning(Request* request, uint64_t culprits, TimeNs now);
  void ask_of(uint32_t op, uint64_t missing_ranks);
  void time_out(const Request& request, TimeNs now);
  void check_left();
  void end_refused(uint32_t op, const std::string& text);
  void rest(TimeNs now, TimeNs deadline);
  Stats gather_stats() const;

  void background();
  void wake();
  void suspect(Lock& lock, const std::string& why);
  void take_turns_off(Lock& lock);
  void fail(Lock& lock, Status status, const char* own = "");
  void check_silence(TimeNs now);

  // Off the switch: the background thread, with the token (lane_ring.cc). Those with a lock hold it.
  void live_off_switch(Lock& lock);
  void freeze(Lock& lock);
  void recover(Lock& lock);
  void ring_step(Lock& lock);
  void run_on_ring(Lock& lock);
  void complete_announced(Lock& lock, Status status);
  void go_over(Lock& lock);
  void give_up(Lock& lock, const Status& status);
  void fail_late(Lock& lock, std::string text);
  void wait_off_switch(Lock& lock);
  void check_off_switch(Lock& lock);
  void end(Lock& lock, Request* request, Status status);
  void end_all_off_switch(Lock& lock);
  std::string awaited() const;
  std::string names_of(uint64_t ranks) const;
  void tell_all(const mesh_wire::Message& message);

  // SwitchPath::Events, from the control client's thread.
  void on_path_end(SwitchPath* path, const Status& status) override;
  void on_mismatch(SwitchPath* path, uint32_t op, const std::string& text) override;
  void on_stall_text(SwitchPath* path, uint32_t op, const std::string& text) override;
  void on_left(SwitchPath* path, uint32_t started, const std::string& text) override;
  control::KeepAlive progress(SwitchPath* path) override;
  // Mesh::Events, from the mesh's thread.
  void on_mesh_message(uint32_t rank, std::span<const std::byte> message) override;
  void on_mesh_end(uint32_t rank, const std::string& why) override;
  void on_asked(uint32_t rank);
  void after_mesh(Lock& lock);

  const Config config_;
  const Log* const log_;
  std::unique_ptr<Ring> ring_;  // null: none
  // The active switch epoch; null on the ring. The token's holder changes it, under the mutex; others look under the mutex.
  std::unique_ptr<SwitchPath> path_;

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
  std::unique_ptr<PathAgreement> agreement_;  // with a ring
  std::unique_ptr<SwitchPath> ready_path_;    // on the ring: of the epoch that this rank can go over to
  std::vector<std::unique_ptr<SwitchPath>> dropped_paths_;  // to be left by the seeker or at the end
  bool ready_ended_ = false;                  // ready_path_'s membership is over
  bool ready_said_ = false;                   // the announcement in hand names it
  bool seeking_ = true;
  std::condition_variable wanted_;
  SwitchPath::Facts latest_facts_;
  std::string why_off_;           // the switch
  Stats past_;                    // of the epochs behind
  uint64_t alive_ = 0;            // off the switch: the ranks that were heard since they were asked
  std::string asked_by_;          // the first rank whose time is over; "" if none has said so
  std::vector<Note> mismatches_;  // inbox
  Note stall_text_;
  Note left_;  // of the ranks that left in order, the one that took part in the fewest operations (op: so many)
  bool any_left_ = false;
  std::vector<Errand*> errands_;
  Registrations registrations_;
  std::thread thread_;  // background(); started by the first operation that needs it

  std::atomic<uint32_t> pending_{0};  // started and not done; changed under the mutex
  std::atomic<uint32_t> takers_{0};   // threads that want the background thread to let go
  std::atomic<bool> inbox_{false};    // take_inbox() has something to do
  std::atomic<bool> off_switch_{false};  // no turns: the background thread does everything; changed under the mutex
  std::atomic<uint32_t> started_{0}, finished_{0};

  // The token's holder.
  std::vector<Request*> refused_;  // wait for the controller's sentence
  Request* announced_ = nullptr;   // on the ring: its announcement is out
  uint32_t next_ordinal_ = 0;      // of the communicator's operations
  uint32_t first_ordinal_ = 0;     // of the switch epoch; changed under the mutex
  TimeNs next_check_ = kNever;
  uint64_t warned_of_ = 0;         // the ranks that the latest stall warning named
  TimeNs warned_at_ = -kNever;
  bool failed_ = false;
};

}  // namespace gatun
