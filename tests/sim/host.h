// Host: one rank of one job: a Worker, its operations' buffers, and the shell between it and the network.
//
// It is where most checkers stand: values and places of every answer, each chunk accepted once, the window, buffers of
// failed operations untouched, nothing sent from an operation that has ended. What it knows of the stream it computes
// itself, from what was accepted and refused, never from the Worker's own account.
#pragma once

#include <cstdint>
#include <vector>

#include "protocols/worker.h"
#include "tests/sim/network.h"
#include "tests/sim/shape.h"
#include "tests/sim/values.h"
#include "tests/sim/world.h"

namespace gatun::sim {

class JobRun;

inline constexpr std::byte kUntouchedByte{0xa5};  // fills receive buffers before their result

class Host {
 public:
  Host(World& world, Network& network, JobRun& job, uint32_t rank);

  void send_probes();  // on trees whose data path is not yet proven
  bool proven() const;
  void start(TimeNs at);
  void release_last_call();  // of a job with an exam: all ranks begin the last operation now

  // The way without a switch (failover.h). After freeze() operations are called as before, but go to no switch; what others
  // hand over and what is reduced among the ranks comes in by deliver(), with the same checks as an answer.
  Holdings freeze();
  bool frozen() const { return worker_.frozen(); }
  bool silent(TimeNs detect) const;  // asks, and hears nothing for so long
  uint32_t called() const { return static_cast<uint32_t>(ops_.size()); }
  bool running_at(uint32_t index) const { return index < ops_.size() && ops_[index].state == State::kRunning; }
  bool holds(uint32_t index, uint64_t chunk) const { return ops_[index].accepted[chunk]; }
  const OpPlan& op_at(uint32_t index) const { return *ops_[index].op; }
  Bytes input_of(uint32_t index, uint64_t chunk);  // what this rank brings to it, as it is in the caller's buffer now
  bool retained(uint32_t index, uint64_t chunk, Bytes* payload);
  void deliver(uint32_t index, uint64_t chunk, const Bytes& payload);
  void fail(uint32_t index);
  void check_not_begun();  // operations that run: another epoch begins them anew

  void on_delivery(uint32_t packet);
  void on_run();  // the event asked for by wake_at
  void die(bool poison = true);  // its memory lives on while packets may refer to it

  bool done() const { return done_; }
  bool waits_for_exam() const;
  uint32_t endpoint() const { return endpoint_; }
  uint32_t rank() const { return rank_; }
  Seq next_seq(uint32_t tree) const { return streams_[tree].next; }
  const Worker& worker() const { return worker_; }
  uint64_t sent_healed() const { return sent_healed_; }
  std::string progress() const;

 private:
  enum class State : uint8_t { kRunning, kDone, kFailed };
  struct Running {
    Running(const JobPlan& job, const OpPlan& plan) : op(&plan), shape(job, plan) {}
    const OpPlan* op;
    Shape shape;
    uint32_t contract = 0;
    Bytes input, output;  // output is empty in place
    std::vector<bool> accepted;
    uint64_t accepted_count = 0;
    State state = State::kRunning;
    std::byte* out() { return op->in_place ? input.data() : output.data(); }
  };
  struct TreeStream {
    uint32_t leaf = 0;  // endpoint of the switch
    uint8_t child = 0;
    bool proven = false;
    Seq floor = 0, next = 0;     // lowest chunk without an answer; next to be sent first
    std::vector<bool> answered;  // ring of 4W
    Bytes arena;                 // W places, where contributions by reference lie
    std::vector<Bytes> retained;  // W payloads
    TimeNs heard_at = 0;         // or began to ask
  };

  void wake_at(TimeNs at);
  void handle(uint32_t packet);
  void on_answer(const Header& header, const Packet& packet);
  void on_refusal(const Header& header);
  void on_status(const Header& header, const Packet& packet);
  void accept(const Header& header, const Packet& packet, uint32_t op, uint64_t index, bool op_done);
  bool check_answer(const Header& header, const Packet& packet, const Running& running, uint64_t index);
  bool check_values(const Running& running, uint64_t index, uint32_t tree, const std::byte* payload, uint32_t bytes);
  void keep(uint32_t tree, Seq seq, uint32_t op, uint64_t index, const Packet& packet);
  void submit_due();
  void submit_next();
  void send_due();
  void send(const Worker::Chunk& chunk);
  bool check_chunk(const Worker::Chunk& chunk);
  void finish(uint32_t number, State state);
  void check_output(uint32_t number);
  void check_untouched(uint32_t number);
  void mark_answered(TreeStream& stream, Seq seq);
  bool always_marked(uint32_t tree) const;
  Running* running(uint32_t number);

  World& world_;
  Network& network_;
  JobRun& job_;
  uint32_t rank_, endpoint_;
  Path path_;
  Worker worker_;
  std::vector<TreeStream> streams_;
  Retained retained_;
  std::vector<Running> ops_;  // by number - first_op
  std::vector<uint32_t> inbox_;
  uint32_t finished_ = 0;
  TimeNs started_at_ = kNever, next_submit_ = kNever, next_run_ = kNever;
  bool last_released_, done_ = false;
  uint64_t sent_healed_ = 0;
};

}  // namespace gatun::sim
