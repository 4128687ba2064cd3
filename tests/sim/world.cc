#include "tests/sim/world.h"

#include <cstdarg>
#include <cstdio>

namespace gatun::sim {
namespace {
constexpr size_t kTraceLines = 60;
}

void World::fail(const char* checker, const char* format, ...) {
  if (failed()) return;
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  failure = std::string(checker) + ": " + text;
  if (trace) log("FAILED %s", failure.c_str());
}

void World::log(const char* format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  char line[1100];
  std::snprintf(line, sizeof line, "%12.3f us  %s", static_cast<double>(now) / kUs, text);
  if (trace->print) {
    std::puts(line);
    return;
  }
  trace->lines.emplace_back(line);
  if (trace->lines.size() > kTraceLines) trace->lines.pop_front();
}

const char* name(Mark mark) {
  switch (mark) {
    case Mark::kLost: return "packet lost";
    case Mark::kDuplicated: return "packet duplicated";
    case Mark::kReordered: return "packet overtaken";
    case Mark::kSpiked: return "packet late by a spike";
    case Mark::kCorrupted: return "packet with flipped bits";
    case Mark::kTruncated: return "packet cut short";
    case Mark::kReplayed: return "old packet replayed";
    case Mark::kForged: return "packet forged";
    case Mark::kCutOff: return "packet on a cut path";
    case Mark::kMarked: return "packet marked (CE)";
    case Mark::kResent: return "chunk sent again";
    case Mark::kVoidSent: return "chunk sent void";
    case Mark::kNews: return "answer accepted";
    case Mark::kOld: return "answer already held";
    case Mark::kHeldBack: return "answer held back";
    case Mark::kForeignNumber: return "answer that cannot be";
    case Mark::kOpFailed: return "operation refused";
    case Mark::kPlaceMoved: return "place moved by another's refusal";
    case Mark::kStatusSeen: return "status received";
    case Mark::kHostChecksum: return "host: wrong checksum";
    case Mark::kHostStranger: return "host: packet of a stranger";
    case Mark::kWindowOne: return "congestion window of one";
    case Mark::kNothingToDo: return "operation without chunks";
    case Mark::kRepeatDown: return "switch repeats its answer";
    case Mark::kRepeatUp: return "switch repeats upwards";
    case Mark::kStatusDown: return "switch names the missing";
    case Mark::kRefused: return "switch refuses a chunk";
    case Mark::kDropStale: return "switch: stale packet";
    case Mark::kDropForeign: return "switch: foreign packet";
    case Mark::kDropChecksum: return "switch: wrong checksum";
    case Mark::kDropMalformed: return "switch: malformed packet";
    case Mark::kDropUnexpected: return "switch: unexpected packet";
    case Mark::kFreedByRemoval: return "buffer freed by removal";
    case Mark::kSeqWrap: return "chunk number crosses 2^32";
    case Mark::kOp16Wrap: return "operation number crosses 2^16";
    case Mark::kOp32Wrap: return "operation number crosses 2^32";
    case Mark::kLevels3: return "tree of three levels";
    case Mark::kMixedDepth: return "switch with ranks and switches below";
    case Mark::kKilled: return "job killed";
    case Mark::kSucceeded: return "job after another on its hosts";
    case Mark::kExam: return "timeout examined";
    case Mark::kShared: return "contribution by reference";
    case Mark::kInPlace: return "operation in place";
    case Mark::kPausedHost: return "host paused";
    case Mark::kSwitchCrash: return "switch crashed";
    case Mark::kSuspected: return "switch suspected";
    case Mark::kFrozen: return "rank froze";
    case Mark::kFrozenEarly: return "switch given up before a rank was there";
    case Mark::kPlanEmpty: return "plan without operations";
    case Mark::kHandover: return "chunk handed over";
    case Mark::kReducedAnew: return "chunk reduced anew";
    case Mark::kPlanMismatch: return "mismatch found by the plan";
    case Mark::kPlanDoneElsewhere: return "handed over by a rank that was done";
    case Mark::kRingOp: return "operation on the ring";
    case Mark::kRingMismatch: return "mismatch on the ring";
    case Mark::kGoneOver: return "gone over to a switch";
    case Mark::kReadyInVain: return "ready for a switch that died";
    case Mark::kRankDied: return "rank died";
    case Mark::kDiedInAgreement: return "rank died while ranks agreed";
  }
  return "unknown";
}

}  // namespace gatun::sim
