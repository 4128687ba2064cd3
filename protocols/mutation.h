// Planted faults: proof that the simulator finds what it is there to find.
//
// The simulator's mutation test compiles the core a second time with GATUN_MUTATIONS; there one fault at a time can be
// switched on. Everywhere else mutated() is a constant false and costs nothing.
#pragma once

#include <cstdint>

namespace gatun {

enum class Mutation : uint8_t {
  kNone,
  // Aggregator
  kOneBank,              // W slots instead of 2W
  kNoChunkNumber,        // a bit per child clears in the other bank, the chunk number is not kept (SwitchML's rule)
  kRepeatCounts,         // a child that repeats itself counts again
  kNoRepeatUp,           // an inner switch that waits for its parent does not ask again
  kNoRepeatDown,         // an answered chunk is not answered again
  kMarkNotOred,          // the marks of contributions get lost
  kEmptyHasPayload,      // an empty contribution is added
  kPlainLess,            // chunk numbers compared as plain numbers
  kOpPlainLess,          // operation numbers compared as plain numbers
  kContractIgnored,      // contributions of different operations are added
  kChildRefusalIgnored,  // a refusal from a switch below counts as a contribution
  kVoidIgnored,          // the chunks behind a refused one stay
  kVoidForever,          // a refused chunk that is void itself still voids what comes
  kPayloadOfOthers,      // an inner switch answers with a payload only if it sent one
  // Node
  kOldHandle,           // the random part of a job's handle is not compared
  kAnyPeer,             // contributions from whoever sends them
  kAnyParent,           // answers from whoever sends them
  kAnyToken,            // a probe proves a child without its token
  kSharedPlace,         // two neighbours share a place in the arena
  kReleasedEarly,       // a contribution's buffer goes back before it is added
  kNotReleased,         // a refused chunk keeps its buffers
  kRemoveKeeps,         // a removed tree keeps its buffers
  kOrderOfBuffers,      // children are added in the order of their buffers in memory
  kDivisorOfChildren,   // an average over the children of the root
  kStampOfRepeat,       // an answer sent again carries the time of the repeat
  kStatusNamesArrived,  // a STATUS names those who are here
  // Wire
  kNoChecksum,
  // Worker
  kBeyondWindow,    // W + 1 chunks
  kWindowCounts,    // the window counts answers instead of waiting for the oldest
  kAcceptTwice,     // an answer already held is news again
  kAcceptEarly,     // an answer before that of its operation's first chunk
  kRefusalEarly,    // a refusal before the answers to earlier operations' first chunks
  kVoidNotSkipped,  // the stream goes on right behind a refused chunk
  kNoRestart,       // the whole window is sent at once behind the void chunks
  kNoTombstone,     // a failed operation is still sent from
  kStatusAnswers,   // a STATUS counts as an answer
  kNoTimer,         // nothing is repeated
  kNoWrap,          // wire numbers are not extended to 64 bits
  // Congestion
  kTimeoutNeverDown,  // the retransmission timeout only grows
  kWindowZero,        // the congestion window may fall below one chunk
  // Recovery
  kNotFrozen,          // answers are accepted after a rank has said what it holds
  kRetainHalf,         // only W/2 answers are retained
  kHoldingsOfFirst,    // the plan counts what rank 0 holds, not what anybody does
  kRefusalForgotten,   // a refusal that others have not heard of is not said
  kAnewThoughHeld,     // a chunk that somebody holds is reduced anew
  kAheadForgotten,     // what is held behind a gap is not said
  kGapEndsPlan,        // what is held only behind a gap does not make its operation the plan's
  kPlanOfMajority,     // the plan is made when most have said what they hold
  kEarlyDropped,       // messages of the epoch to come are dropped
  kReadyAlone,         // a rank that is ready goes over without the others
  kReadyNotCompared,   // ranks that are ready for different jobs go over
  kGoOverLate,         // rank 0 goes over one operation later
  kRoundOfMajority,    // a ring operation runs when most have announced it
  kContractsOnRing,    // contracts on the ring are not compared
  kCount,
};

#ifdef GATUN_MUTATIONS
extern Mutation planted_mutation;
inline bool mutated(Mutation mutation) {
  return planted_mutation == mutation;
}
#else
constexpr bool mutated(Mutation) {
  return false;
}
#endif

}  // namespace gatun
