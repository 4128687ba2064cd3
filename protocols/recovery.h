// Recovery: how the ranks of a job finish, without their switch, what was in flight when it died.
//
// Every rank stops listening to the switch (for good: its later packets count no more), says to all others what it holds
// (Holdings), and makes the same plan from what all said. A chunk that some hold is handed to those that lack it; a chunk
// that none holds still has all its inputs in place and is reduced anew. Operations behind all that anybody has an answer to
// are not the plan's: they run on the job's next path from their beginning.
//
// Why it is enough that a rank retains its last W answers per tree: PROTOCOL.md, "When a switch dies". Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocols/contract.h"
#include "protocols/seq.h"
#include "protocols/status.h"

namespace gatun {

// What one rank holds of one switch epoch; Worker::holdings() makes it. Operation numbers are the Worker's.
struct Holdings {
  struct Chunk {
    uint32_t op = 0;
    uint64_t index = 0;
    bool operator==(const Chunk&) const = default;
  };
  struct Operation {
    uint32_t op = 0;
    uint64_t chunks = 0;  // not 0
    Contract contract;
    bool operator==(const Operation&) const = default;
  };
  struct Tree {
    Chunk next;                // the first chunk in the order of this tree's stream whose answer is not held
    std::vector<Chunk> ahead;  // held behind it, in stream order; fewer than W
    bool operator==(const Tree&) const = default;
  };
  uint32_t next_op = 0;               // operations below it have been submitted
  std::vector<uint32_t> refused;      // operations whose refusal another rank may not have heard of; rising
  std::vector<Operation> operations;  // the latest that have chunks, rising: all that any rank may still be at
  std::vector<Tree> trees;
  bool operator==(const Holdings&) const = default;
};

inline constexpr uint32_t kHoldingsOperationsMax = 512;  // 2 kOperationsMax: the plan's, and those that run here
inline constexpr uint32_t kHoldingsTreesMax = 16;        // kTreesMax

class RecoveryPlan {
 public:
  // A chunk that `holder` hands to the ranks in `lacking`.
  struct Handover {
    uint32_t op = 0;
    uint64_t index = 0;
    uint32_t holder = 0;
    uint64_t lacking = 0;  // one bit per rank
    bool operator==(const Handover&) const = default;
  };
  // What becomes of an operation of the plan.
  enum class Fate : uint8_t {
    kNothing,   // it has no chunks on any rank and was done at once
    kFinish,    // handovers, then what is to be reduced anew; ranks at which it is done take part with what they retain
    kMismatch,  // the ranks disagree: it fails wherever it has not ended
  };

  // by_rank: of every rank, all with the same trees. kInternal if what they say cannot be (named in the sentence).
  static Result<RecoveryPlan> make(std::span<const Holdings> by_rank, uint32_t window);

  // Operations [begin_op, end_op), at most kOperationsMax, are this plan's; all ranks have submitted them. Below: ended
  // everywhere. From end_op on: nobody has an answer.
  uint32_t begin_op() const { return begin_op_; }
  uint32_t end_op() const { return end_op_; }
  // Of an operation of the plan:
  Fate fate(uint32_t op) const;
  uint64_t chunks(uint32_t op) const;                           // kFinish
  std::string mismatch(uint32_t op, uint32_t ordinal) const;    // kMismatch: the sentence, the same on all ranks
  bool reduce_anew(uint32_t op, uint64_t index) const;          // kFinish: nobody holds this chunk
  bool held(uint32_t rank, uint32_t op, uint64_t index) const;  // kFinish: this rank does
  // In an order that all ranks share: by operation, then by chunk.
  const std::vector<Handover>& handovers() const { return handovers_; }

 private:
  struct Place {  // in the order of one tree's stream; operations counted from begin_op_
    int64_t op = 0;
    uint64_t index = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Held {  // by one rank (or by any) on one tree
    Place next;
    std::vector<Place> ahead;
    bool has(const Place& place) const;
  };
  struct Operation {
    Fate fate = Fate::kNothing;
    uint64_t chunks = 0;
    std::vector<Contract> contracts;  // of a mismatch, by rank
    std::vector<bool> present;        // of a mismatch: the rank brought chunks
  };
  Status take_in(std::span<const Holdings> by_rank, uint32_t window);
  Status take_tree(const Holdings& holdings, uint32_t rank, uint32_t tree, uint32_t window);
  Status find_range(std::span<const Holdings> by_rank);
  Status judge_operations(std::span<const Holdings> by_rank);
  Status hand_over(uint32_t tree, uint32_t window);
  uint32_t trees() const { return static_cast<uint32_t>(any_.size()); }

  uint32_t begin_op_ = 0, end_op_ = 0;
  std::vector<Operation> operations_;    // of the plan
  std::vector<std::vector<Held>> held_;  // by rank and tree
  std::vector<Held> any_;                // by tree: what somebody holds
  std::vector<Handover> handovers_;
};

// Retained: where a rank keeps the payloads of its last W answers per tree: the answer to chunk seq in place seq mod W.
// The caller owns the bytes. No allocation after construction.
class Retained {
 public:
  Retained(uint32_t trees, uint32_t window);

  // An answer was accepted (Verdict::kNews). The place in [0, W) where its payload belongs.
  uint32_t on_news(uint32_t tree, Seq seq, uint32_t op, uint64_t index);
  // The place of a chunk that is among the last W answers on its tree; false if it is not. Quick when asked in stream order.
  bool find(uint32_t op, uint64_t index, uint32_t* tree, uint32_t* place) const;

 private:
  struct Place {
    bool used = false;
    uint32_t op = 0;
    uint64_t index = 0;
  };
  uint32_t trees_, window_;
  std::vector<Place> places_;            // trees x W
  mutable std::vector<uint32_t> hints_;  // per tree, where the latest search ended
};

}  // namespace gatun
