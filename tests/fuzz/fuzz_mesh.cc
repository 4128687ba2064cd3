// Any bytes as messages of two other ranks, in any order with what this rank does, into the mesh's decoder and
// PathAgreement.
//
// Checked: what was decoded can be encoded and decoded again; a plan that was made is walked through within its bounds; the
// agreement only does what its state allows, and once it has failed it stays so.

#include "protocols/mesh_wire.h"
#include "protocols/path.h"
#include "protocols/status.h"
#include "protocols/worker.h"
#include "tests/fuzz/fuzz.h"

namespace gatun::fuzz {
namespace {

enum Step : uint8_t { kMessage, kWell, kAct, kSuspect, kReady, kEnd, kSteps };

constexpr uint32_t kWindow = 4;
constexpr PathAgreement::Job kJob{.handle = 77, .window = kWindow, .first_op = 5};
using State = PathAgreement::State;

class Harness {
 public:
  explicit Harness(bool on_switch) : path_(0, {"rank 0", "rank 1", "rank 2"}, on_switch ? &kJob : nullptr) {}

  void step(Input& input) {
    const State before = path_.state();
    const uint32_t from = 1 + input.below(2);
    switch (input.below(kSteps)) {
      case kMessage: message(from, input); break;
      case kWell: well_formed(from, input); break;
      case kAct: act(input); break;
      case kSuspect: path_.on_suspect("why"); break;
      case kReady: path_.ready(input.bit() ? &kJob : nullptr); break;
      case kEnd: path_.on_end(from, "ended"); break;
    }
    GATUN_CHECK(before != State::kFailed || path_.state() == State::kFailed);
    GATUN_CHECK(path_.status().ok() == (path_.state() != State::kFailed));
    GATUN_CHECK((path_.missing() & ~uint64_t{7}) == 0);
  }

 private:
  void message(uint32_t from, Input& input) {
    std::vector<std::byte> bytes(std::min<size_t>(input.u8(), input.left()));
    for (std::byte& byte : bytes) byte = std::byte(input.u8());
    mesh_wire::Message message, again;
    if (!mesh_wire::decode(bytes, &message).empty()) return;
    GATUN_CHECK(mesh_wire::decode(mesh_wire::encode(message), &again).empty() && again == message);
    path_.on_message(from, message);
  }

  // One that fits the present state but for what the input says.
  void well_formed(uint32_t from, Input& input) {
    const uint32_t epoch = path_.epoch() + input.below(2);
    if (input.bit()) {
      const uint32_t ready = input.bit() ? kJob.handle : 0;
      path_.on_message(from, mesh_wire::Announce{epoch, ordinal_ + input.below(3), {.count = input.below(2)}, ready});
    } else {
      path_.on_message(from, mesh_wire::Frozen{epoch, kJob.handle, path_.first_ordinal(), "why", holdings(input)});
    }
  }

  Holdings holdings(Input& input) {
    Holdings holdings;
    holdings.next_op = kJob.first_op + input.below(4);
    for (uint32_t op = kJob.first_op; op != holdings.next_op; ++op)
      if (!input.bit() || input.bit())
        holdings.operations.push_back({op, 1 + input.below(6), {.count = input.below(8) == 0}});
    if (input.below(4) == 0) holdings.refused.push_back(kJob.first_op + input.below(3));
    for (uint32_t tree = 0; tree < 2; ++tree) {
      Holdings::Tree& stream = holdings.trees.emplace_back();
      stream.next = {kJob.first_op + input.below(4), input.below(6)};
      while (input.below(3) == 0 && !input.empty()) stream.ahead.push_back({kJob.first_op + input.below(4), input.below(8)});
    }
    return holdings;
  }

  void act(Input& input) {
    switch (path_.state()) {
      case State::kFreeze: path_.freeze(holdings(input)); return;
      case State::kRecover: walk(path_.plan()); return path_.recovered();
      case State::kRing:
        if (path_.round() == PathAgreement::Round::kNone) {
          if (ordinal_ - path_.first_ordinal() > 1u << 30) ordinal_ = path_.first_ordinal();
          path_.announce(ordinal_, {.count = input.below(2)});
        } else if (path_.round() != PathAgreement::Round::kWaiting) {
          if (path_.round() == PathAgreement::Round::kMismatch) GATUN_CHECK(!path_.mismatch().empty());
          path_.complete();
          ++ordinal_;
        }
        return;
      default: return;
    }
  }

  void walk(const RecoveryPlan& plan) {
    GATUN_CHECK(plan.end_op() - plan.begin_op() <= kOperationsMax);
    GATUN_CHECK(plan.handovers().size() <= 2 * kWindow);
    for (const RecoveryPlan::Handover& handover : plan.handovers()) {
      GATUN_CHECK(plan.fate(handover.op) == RecoveryPlan::Fate::kFinish && handover.index < plan.chunks(handover.op));
      GATUN_CHECK(plan.held(handover.holder, handover.op, handover.index));
      GATUN_CHECK(!plan.reduce_anew(handover.op, handover.index));
      for (uint32_t rank = 0; rank < 3; ++rank)
        GATUN_CHECK((handover.lacking >> rank & 1) != plan.held(rank, handover.op, handover.index));
    }
    for (uint32_t op = plan.begin_op(); op != plan.end_op(); ++op)
      if (plan.fate(op) == RecoveryPlan::Fate::kMismatch) GATUN_CHECK(!plan.mismatch(op, 0).empty());
  }

  PathAgreement path_;
  uint32_t ordinal_ = 0;
};

void say(Bytes* script, uint8_t from, const mesh_wire::Message& message) {
  const std::vector<std::byte> bytes = mesh_wire::encode(message);
  script->insert(script->end(), {static_cast<uint8_t>(from - 1), kMessage, static_cast<uint8_t>(bytes.size())});
  for (const std::byte byte : bytes) script->push_back(std::to_integer<uint8_t>(byte));
}

}  // namespace

std::vector<std::pair<std::string, Bytes>> seeds() {
  Bytes ring = {0, 0, kAct, 0};
  for (uint8_t rank = 1; rank < 3; ++rank) say(&ring, rank, mesh_wire::Announce{});
  ring.insert(ring.end(), {0, kAct, 0, kAct});
  Bytes frozen = {1, 0, kSuspect, 0, kAct, 1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1};
  Holdings holdings;
  holdings.next_op = kJob.first_op + 1;
  holdings.operations = {{kJob.first_op, 4, {}}};
  holdings.trees = {{.next = {5, 1}, .ahead = {}}, {.next = {5, 2}, .ahead = {}}};
  for (uint8_t rank = 1; rank < 3; ++rank) say(&frozen, rank, mesh_wire::Frozen{0, kJob.handle, 0, "why", holdings});
  frozen.insert(frozen.end(), {0, kAct, 0, kAct});
  Bytes ends = {0};
  say(&ends, 1, mesh_wire::Leave{3});
  ends.insert(ends.end(), {0, kEnd});
  say(&ends, 2, mesh_wire::Abort{"no", false});
  Bytes over = {0, 0, kReady, 1, 0, kAct, 0};
  for (uint8_t rank = 1; rank < 3; ++rank) say(&over, rank, mesh_wire::Announce{.ready_job = kJob.handle});
  over.insert(over.end(), {0, kAct, 0, kSuspect, 0, kAct});
  return {{"ring", ring}, {"frozen", frozen}, {"ends", ends}, {"over", over}};
}

}  // namespace gatun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gatun::fuzz::Input input(data, size);
  gatun::fuzz::Harness harness(input.bit());
  while (!input.empty()) harness.step(input);
  return 0;
}
