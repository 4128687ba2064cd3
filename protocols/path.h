// PathAgreement: which path a communicator's operations take, agreed by all ranks over the mesh.
//
// A communicator lives through epochs: switch epochs (one job handle, one Worker) and ring epochs. All ranks change at the
// same operation. One object per communicator and rank; whoever owns it sends what it gives out to all other ranks, hands
// in what comes, in the order of the mesh, and does what the state says:
//
//   kSwitch      operations go to the switch. A suspicion here, or a rank that has frozen, makes
//   kFreeze      the caller freeze its Worker (no later answer counts) and call freeze(holdings), whose message goes to all;
//   kFrozen      the others' holdings are awaited (missing() says whose); with all of them
//   kRecover     plan() is to be carried out: handovers and reductions; then recovered() begins
//   kRing        a ring epoch. An operation is announced when all before it have ended; round() says when all ranks have
//                announced it, and whether they agree; then it runs on the ring, and complete() ends it. If all
//                announcements of an operation carried the same ready job, complete() begins that job's epoch: kSwitch.
//   kFailed      a rank is gone or confused: status() says it. For good. Its message goes to all as ABORT: others may wait
//                for this rank while they have no reason of their own to fail.
//
// Ordinals count all operations of the communicator from 0. In a switch epoch operation k of the Worker has ordinal
// first_ordinal() + (k - its first_op). An operation that has no chunks here (the Worker allows that) counts too, but need
// not be announced: a rank that announces n brings nothing to what lies between its previous one and n.
//
// Sans-IO, no clock, no lock (the caller's), allocates freely: never on the datapath.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocols/mesh_wire.h"
#include "protocols/recovery.h"
#include "protocols/status.h"

namespace gatun {

class PathAgreement {
 public:
  enum class State : uint8_t { kSwitch, kFreeze, kFrozen, kRecover, kRing, kFailed };
  enum class Round : uint8_t {
    kNone,      // nothing is announced here
    kWaiting,   // for the ranks in missing()
    kRun,       // all are there and agree: run it on the ring, then complete()
    kMismatch,  // they do not: it fails with mismatch(), then complete()
  };

  struct Job {  // of a switch epoch, as admitted
    uint32_t handle = 0;
    uint32_t window = 0;
    uint32_t first_op = 0;
  };

  // names: how sentences call each rank ("rank 2 (host b, pid 77)"), and so how many there are. job: of the switch epoch
  // that the communicator begins with, the same on all ranks; null: it begins on the ring.
  PathAgreement(uint32_t rank, std::vector<std::string> names, const Job* job);

  // Events. Whatever comes from others may change state(): look at it afterwards.
  void on_message(uint32_t from, const mesh_wire::Message& message);
  void on_end(uint32_t from, const std::string& why);  // its connection has ended; after its Leave only who waits fails
  // What carries out a plan or an operation cannot go on (bytes of a rank that is gone, a deadline).
  void on_failure(const Status& status) { fail(status.code(), status.message()); }
  void on_suspect(const std::string& why);  // the switch seems dead; harmless on the ring

  // In kFreeze: what the frozen Worker holds. The message goes to all other ranks.
  mesh_wire::Message freeze(Holdings holdings);
  // In kRecover: the plan has been carried out here. The first operation of the ring epoch is ring_ordinal().
  void recovered();

  // In kRing: the switch epoch that this rank can go over to: a job that has started here; null: none. Said with the next
  // announcement. A job that was said stays usable until the operation's complete(): all may go over to it. If it has died
  // by then, on_suspect() once there.
  void ready(const Job* job);
  // In kRing, when nothing is announced: the next operation that has chunks. The message goes to all other ranks.
  mesh_wire::Message announce(uint32_t ordinal, const Contract& contract);
  // The announced operation has ended here, after round() said kRun or kMismatch. True: state() is kSwitch now (or kFreeze),
  // job() is the new job and its first operation is first_ordinal(): that after the one just ended.
  bool complete();

  // Getters.
  State state() const { return state_; }
  uint32_t epoch() const { return epoch_; }
  uint32_t job() const { return job_.handle; }               // of the switch epoch; 0 on the ring
  uint32_t first_ordinal() const { return first_ordinal_; }  // of the epoch
  uint32_t ring_ordinal() const;                             // kRecover: the first operation behind the plan
  const std::string& why() const { return why_; }            // the switch was given up
  uint32_t by() const { return by_; }                        // the rank that said it first, as far as is known here
  const RecoveryPlan& plan() const { return *plan_; }        // kRecover
  uint32_t plan_ordinal(uint32_t op) const { return first_ordinal_ + (op - job_.first_op); }
  Round round() const;
  std::string mismatch() const;  // kMismatch: the sentence, the same on all ranks
  uint64_t missing() const;      // ranks awaited: kFrozen, kRing
  // Other ranks that have not said LEAVE. A rank that has ended all its operations says LEAVE and goes on serving as before
  // (freezes, hands over) until there is none, or its patience ends: another may lack what only it retains.
  uint64_t staying() const;
  const Status& status() const { return status_; }
  uint32_t ranks() const { return static_cast<uint32_t>(peers_.size()); }

 private:
  struct Peer {
    std::string name;
    std::vector<mesh_wire::Announce> announced;  // of this epoch or the next, not yet behind us; at most kAnnouncedMax
    std::unique_ptr<mesh_wire::Frozen> frozen;   // of this epoch or the next
    bool left = false, ended = false;
    uint32_t left_ordinal = 0;
  };

  void on_announce(uint32_t from, const mesh_wire::Announce& announce);
  void on_frozen(uint32_t from, const mesh_wire::Frozen& frozen);
  void on_leave(uint32_t from, const mesh_wire::Leave& leave);
  void begin_epoch(const Job& job, uint32_t first_ordinal);
  void look_at_frozen();
  void forget_announced(uint32_t below);
  void check_left();
  void fail(Code code, std::string text);
  void confused(uint32_t from, const std::string& what);
  const mesh_wire::Announce* announced_at(const Peer& peer, uint32_t ordinal) const;
  bool awaited(const Peer& peer) const;

  uint32_t rank_;
  std::vector<Peer> peers_;  // ourselves included
  State state_ = State::kRing;
  uint32_t epoch_ = 0, first_ordinal_ = 0;
  Job job_;    // of this epoch; handle 0 on the ring
  Job ready_;  // to be said with the next announcement
  bool announced_ = false;
  mesh_wire::Announce announce_;  // ours, with announced_
  Job announced_ready_;           // the job that announce_ names
  std::string why_;
  uint32_t by_ = 0;
  std::unique_ptr<RecoveryPlan> plan_;
  Status status_;
};

}  // namespace gatun
