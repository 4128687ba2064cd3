// Worker: one rank's side of a job, over all its trees. It decides which chunk is sent when, and what a packet means.
//
// Operations are numbered; chunk i of operation k travels on tree (k + i) mod T, so the place of a chunk is arithmetic that
// every rank does alike. Per tree the chunks of successive operations form one endless numbered stream. A chunk is sent only
// while all answers up to W before it are held. The caller moves the bytes: it encodes what poll_send() names and copies
// what on_result() calls news.
//
// An answer is accepted only if the first chunk of its operation on this tree, and of every earlier operation there, has
// been accepted: a refusal (contracts differ) can only hit a first chunk, so nothing after a refused chunk was ever
// accepted. The refused chunk and the W - 1 after it are void on every rank, and the stream goes on W later with the next
// operation. Until the first chunk there is answered nothing else is sent: only then is it known that every rank holds what
// came before.
//
// Sans-IO: commands (submit), events (on_*), decisions (poll_*), getters. No allocation after construction.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "protocols/congestion.h"
#include "protocols/contract.h"
#include "protocols/mutation.h"
#include "protocols/recovery.h"
#include "protocols/seq.h"
#include "protocols/time.h"

namespace gatun {

inline constexpr uint32_t kTreesMax = 16;
inline constexpr uint32_t kOperationsMax = 256;  // in flight per job; a power of two

class Worker {
 public:
  struct Config {
    uint32_t trees = 1;
    uint32_t window = 16;          // W, chunks; the switch was sized for it
    uint32_t window_initial = 16;  // first congestion window
    bool reliable = false;         // the transport loses nothing: the timer only asks who is missing
    TimeNs rto_initial = 20 * kMs;
    TimeNs rto_min = 20 * kMs;  // ranks that share cores are off them for a few milliseconds at a time
    TimeNs rto_max = 200 * kMs;
    Seq first_seq = 0;             // same on all ranks
    uint32_t first_op = 0;
  };

  struct Chunk {
    uint32_t tree = 0;
    Seq seq = 0;
    uint32_t op = 0;     // operation number
    uint64_t index = 0;  // chunk within the operation
    bool repeat = false;
    bool void_payload = false;  // the operation has ended here: send kFlagEmpty, its buffer may be gone
  };

  enum class Verdict : uint8_t {
    kNews,      // copy the payload; then the chunk counts as held
    kOld,       // already held, void, or held back before
    kHeldBack,  // not acceptable yet (see above): forget it, it will be asked for again
    kForeign,   // a number or operation that cannot be
    kFailed,    // on_refused: operation `op` failed here (op_done), or only its place in the stream has moved
  };
  struct Outcome {
    Verdict verdict = Verdict::kForeign;
    uint32_t op = 0;
    uint64_t index = 0;
    Seq seq = 0;           // kNews: its number on its tree, by which its payload is retained (Retained)
    bool op_done = false;  // all chunks of op are held, or it failed
    // The whole tree has worked for it. Any other answer a leaf repeats from memory, also once the switches above are dead.
    bool fresh() const { return verdict == Verdict::kNews || verdict == Verdict::kHeldBack || verdict == Verdict::kFailed; }
  };

  explicit Worker(const Config& config);

  // Commands. submit() returns the operation's number; can_submit() must be true. chunks == 0 is done at once. The contract
  // is kept for holdings().
  bool can_submit() const { return !frozen_ && op_tail_ - op_head_ < kOperationsMax; }
  uint32_t submit(uint64_t chunks, const Contract& contract = {});
  // The switch is given up: nothing is sent any more, and no later answer counts.
  void freeze() { frozen_ = true; }
  uint32_t next_op() const { return op_tail_; }

  // Events.
  Outcome on_result(uint32_t tree, uint32_t seq, uint16_t op, bool congested, TimeNs now);
  Outcome on_refused(uint32_t tree, uint32_t seq, uint16_t lowest_op, TimeNs now);
  // The switch lives and holds our contribution to seq; others are missing.
  void on_status(uint32_t tree, uint32_t seq, TimeNs now);

  // Decisions: the next chunk to send now. Call until false after every batch of events and when poll_timer() has passed.
  bool poll_send(TimeNs now, Chunk* chunk);
  TimeNs poll_timer() const;  // when poll_send() must be called again; kNever if nothing is in flight

  // Getters.
  bool idle() const;                    // nothing in flight and nothing to send
  uint32_t operations() const { return op_tail_ - op_head_; }
  uint64_t resent() const { return resent_; }
  uint64_t marked() const { return marked_; }
  uint32_t window_chunks(uint32_t tree) const { return trees_[tree].cwnd.chunks(); }
  TimeNs srtt(uint32_t tree) const { return trees_[tree].rtt.srtt_ns(); }
  Seq oldest(uint32_t tree) const { return trees_[tree].base; }  // lowest chunk without an answer
  bool frozen() const { return frozen_; }
  // What this rank holds; allocates. Said to the other ranks once the Worker is frozen.
  Holdings holdings() const;
  // The chunk that an answer with this number would be for; false if none in flight has it.
  bool find(uint32_t tree, uint32_t seq, Chunk* chunk) const;

 private:
  enum EntryState : uint8_t { kNone, kSent, kHeld };
  struct Entry {           // one chunk between base and base + W
    TimeNs sent_at = 0;
    TimeNs due_at = 0;     // repeat then
    uint64_t index = 0;
    uint32_t op = 0;
    uint8_t state = kNone;
    uint8_t repeats = 0;
    uint8_t timeouts = 0;    // of the repeats, those that the timer caused without a word from the switch
    bool first = false;      // of its operation on this tree: its answer confirms or refuses the operation
    bool held_back = false;  // its answer came too early and was forgotten
    bool waited = false;     // for a late rank: its time says nothing of the path
    bool told = false;       // a STATUS answered its latest repeat: the switch lives, others are late
    bool tombstone = false;  // its operation failed on another tree; only the position still waits for its answer
  };
  struct Operation {
    uint64_t chunks = 0;
    uint64_t held = 0;
    bool failed = false;
  };
  struct Tree {
    explicit Tree(const Config& config);
    Seq base;                  // lowest chunk whose answer is not held
    Seq next;                  // next chunk to send for the first time
    Seq confirm;               // lowest unheld first chunk of an operation; next if there is none
    Seq examined;              // chunks below have been looked at for loss
    Seq refused = 0;           // with voiding: the refused chunk; the stream goes on at refused + W once base reaches it
    uint32_t refused_op = 0;   // with voiding or restarting: the operation that was refused
    Seq barrier = 0;           // with restarting: the only chunk that may be in flight
    bool voiding = false, restarting = false;
    uint32_t outstanding = 0;  // sent, answer not held
    uint32_t send_op;          // operation of `next`
    uint64_t send_index;       // its chunk index; >= chunks when the next operation is due
    TimeNs timer = kNever;     // no entry is due earlier
    bool stalled = false;      // a STATUS said that others are late: until base moves only base is repeated
    CongestionWindow cwnd;
    RttEstimator rtt;
    TimeNs due_rto;            // no entry's due_at counts with a longer timeout
    std::vector<Entry> entries;  // W
  };

  Outcome ack(Tree& tree, Seq seq, bool congested, TimeNs now);
  void bring_forward(Tree& tree);
  void find_losses(Tree& tree, Seq seq, TimeNs now);
  void advance_confirm(Tree& tree, TimeNs now);
  void advance_base(Tree& tree, TimeNs now);
  void fail(uint32_t op);
  void retire_operations();
  bool seek_chunk(Tree& tree, uint32_t tree_index);
  Holdings::Chunk cursor(const Tree& tree, uint32_t tree_index) const;
  bool poll_repeat(Tree& tree, uint32_t tree_index, TimeNs now, Chunk* chunk);
  bool poll_new(Tree& tree, uint32_t tree_index, TimeNs now, Chunk* chunk);
  static void hold_back(Entry& entry, Outcome* outcome) {
    outcome->verdict = std::exchange(entry.held_back, true) ? Verdict::kOld : Verdict::kHeldBack;
  }
  bool deaf() const { return frozen_ && !mutated(Mutation::kNotFrozen); }
  void make_due(Tree& tree, Entry& entry, TimeNs when) {
    entry.due_at = when;
    if (when < tree.timer) tree.timer = when;
  }
  uint64_t first_index(uint32_t tree, uint32_t op) const {
    return (tree + config_.trees - op % config_.trees) % config_.trees;
  }
  Operation& operation(uint32_t op) { return operations_[op & (kOperationsMax - 1)]; }
  Entry& entry(Tree& tree, Seq seq) { return tree.entries[seq & (config_.window - 1)]; }
  const Entry& entry(const Tree& tree, Seq seq) const { return tree.entries[seq & (config_.window - 1)]; }
  bool live(uint32_t op) const { return op - op_head_ < op_tail_ - op_head_; }

  Config config_;
  std::vector<Tree> trees_;
  std::vector<Operation> operations_;  // kOperationsMax
  uint32_t op_head_, op_tail_;         // [head, tail) are live
  std::vector<Holdings::Operation> recent_;  // ring of the latest that have chunks, kHoldingsOperationsMax
  uint64_t recent_count_ = 0;
  bool frozen_ = false;
  uint32_t poll_tree_ = 0;  // round robin between trees
  uint64_t resent_ = 0, marked_ = 0;
};

}  // namespace gatun
