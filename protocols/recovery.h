// Recovery: how the ranks of a job finish, without their switch, what was in flight when it died.
//
// Every rank stops listening to the switch (for good: its later packets count no more), says to all others what it holds
// (Holdings), and makes the same plan from what all said. A chunk that some hold is handed to those that lack it; a chunk
// that none holds still has all its inputs in place and is reduced anew. Operations of which nobody holds anything, behind
// all that are touched, are not the plan's: they run on the job's next path from their beginning.
//
// Why it is enough that a rank retains its last W answers per tree: PROTOCOL.md, "When a switch dies". Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocols/status.h"

namespace gatun {

// What one rank holds of one switch epoch. Operation numbers are the Worker's.
struct Holdings {
  struct Chunk {
    uint32_t op = 0;
    uint64_t index = 0;
    bool operator==(const Chunk&) const = default;
  };
  struct Tree {
    Chunk next;                // the first chunk in the order of this tree's stream whose answer is not held
    std::vector<Chunk> ahead;  // held behind it, in stream order; fewer than W
    bool operator==(const Tree&) const = default;
  };
  uint32_t next_op = 0;           // operations below it have been submitted
  std::vector<uint32_t> refused;  // operations that ended here by refusal, of those that another rank may still have; rising
  std::vector<Tree> trees;
  bool operator==(const Holdings&) const = default;
};

class RecoveryPlan {
 public:
  // A chunk that `holder` hands to the ranks in `lacking`.
  struct Handover {
    uint32_t op = 0;
    uint64_t index = 0;
    uint32_t holder = 0;
    uint64_t lacking = 0;  // one bit per rank
  };

  // by_rank: of every rank, all with the same trees. kInternal if what they say cannot be (named in the sentence).
  static Result<RecoveryPlan> make(std::span<const Holdings> by_rank, uint32_t window);

  // Operations [begin_op, end_op) are this plan's; all ranks have submitted them. Below: done everywhere. From end_op on:
  // nobody has an answer.
  uint32_t begin_op() const { return begin_op_; }
  uint32_t end_op() const { return end_op_; }
  bool refused(uint32_t op) const;  // ends with a mismatch on every rank
  // In an order that all ranks share.
  const std::vector<Handover>& handovers() const { return handovers_; }
  // Of an operation of the plan that is not refused: does nobody hold this chunk?
  bool reduce_anew(uint32_t op, uint64_t index) const;
  // Does this rank hold it already (no handover, no reduction needed here)?
  bool held(uint32_t rank, uint32_t op, uint64_t index) const;

 private:
  uint32_t begin_op_ = 0, end_op_ = 0;
  std::vector<Handover> handovers_;
  // (what reduce_anew and held need)
};

}  // namespace gatun
