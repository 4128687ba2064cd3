// Marks: how often each rare branch was reached, so that a green run proves that its faults bite.
#pragma once

#include <array>
#include <cstdint>

namespace gatun::sim {

enum class Mark : uint8_t {
  // What the network did.
  kLost,
  kDuplicated,
  kReordered,
  kSpiked,
  kCorrupted,
  kTruncated,
  kReplayed,
  kForged,
  kCutOff,
  kMarked,
  // What the hosts saw.
  kResent,
  kVoidSent,
  kNews,
  kOld,
  kHeldBack,
  kForeignNumber,
  kOpFailed,
  kPlaceMoved,
  kStatusSeen,
  kHostChecksum,
  kHostStranger,
  kWindowOne,
  kNothingToDo,
  // What the switches did.
  kRepeatDown,
  kRepeatUp,
  kStatusDown,
  kRefused,
  kDropStale,
  kDropForeign,
  kDropChecksum,
  kDropMalformed,
  kDropUnexpected,
  kFreedByRemoval,
  // What the runs contained.
  kSeqWrap,
  kOp16Wrap,
  kOp32Wrap,
  kLevels3,
  kMixedDepth,
  kKilled,
  kSucceeded,
  kExam,
  kShared,
  kInPlace,
  kPausedHost,
  // The way without a switch.
  kSwitchCrash,
  kSuspected,
  kFrozen,
  kFrozenEarly,
  kPlanEmpty,
  kHandover,
  kReducedAnew,
  kPlanMismatch,
  kPlanDoneElsewhere,
  kRingOp,
  kRingMismatch,
  kGoneOver,
  kReadyInVain,
  kRankDied,
  kDiedInAgreement,
};
inline constexpr int kMarks = static_cast<int>(Mark::kDiedInAgreement) + 1;

const char* name(Mark mark);

class Marks {
 public:
  void hit(Mark mark, uint64_t times = 1) { counts_[static_cast<size_t>(mark)] += times; }
  uint64_t count(Mark mark) const { return counts_[static_cast<size_t>(mark)]; }

 private:
  std::array<uint64_t, kMarks> counts_{};
};

}  // namespace gatun::sim
