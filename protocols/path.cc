#include "protocols/path.h"

#include <algorithm>

#include "protocols/mutation.h"
#include "protocols/seq.h"
#include "protocols/words.h"

namespace gatun {
namespace {

// Nobody announces an operation before all have announced the one before: at most the current one and the next are known.
constexpr size_t kAnnouncedMax = 2;

bool before(uint32_t a, uint32_t b) {
  return serial_distance(a, b) < 0;
}

}  // namespace

PathAgreement::PathAgreement(uint32_t rank, std::vector<std::string> names, const Job* job)
    : rank_(rank), peers_(names.size()) {
  GATUN_CHECK(rank < names.size() && names.size() <= 64);
  for (size_t i = 0; i < names.size(); ++i) peers_[i].name = std::move(names[i]);
  if (!job) return;
  job_ = *job;
  state_ = State::kSwitch;
}

void PathAgreement::on_message(uint32_t from, const mesh_wire::Message& message) {
  GATUN_CHECK(from < ranks() && from != rank_);
  if (state_ == State::kFailed) return;
  if (const auto* announce = std::get_if<mesh_wire::Announce>(&message)) return on_announce(from, *announce);
  if (const auto* frozen = std::get_if<mesh_wire::Frozen>(&message)) return on_frozen(from, *frozen);
  if (const auto* leave = std::get_if<mesh_wire::Leave>(&message)) return on_leave(from, *leave);
  if (std::holds_alternative<mesh_wire::KeepAlive>(message)) return;  // for whoever carries the messages
  const auto& abort = std::get<mesh_wire::Abort>(message);
  fail(abort.lost ? Code::kRankLost : abort.timed_out ? Code::kTimeout : Code::kAborted, abort.text);
}

void PathAgreement::on_announce(uint32_t from, const mesh_wire::Announce& announce) {
  const bool now = announce.epoch == epoch_ && state_ == State::kRing;
  const bool early = announce.epoch == epoch_ + 1 && state_ != State::kRing;
  if (!now && !early) return confused(from, "announces an operation in epoch " + std::to_string(announce.epoch));
  if (early && mutated(Mutation::kEarlyDropped)) return;
  std::vector<mesh_wire::Announce>& list = peers_[from].announced;
  if (!list.empty() && !before(list.back().ordinal, announce.ordinal)) return confused(from, "announces backwards");
  list.push_back(announce);
  // It brings elements where we have none: it fails there by itself, once it hears of ours.
  if (announced_) forget_announced(announce_.ordinal);
  if (list.size() > kAnnouncedMax) confused(from, "announces operations before all are there");
}

void PathAgreement::on_frozen(uint32_t from, const mesh_wire::Frozen& frozen) {
  const bool now = frozen.epoch == epoch_ && state_ != State::kRing;
  const bool early = frozen.epoch == epoch_ + 1 && state_ == State::kRing;
  Peer& peer = peers_[from];
  if ((!now && !early) || peer.frozen) return confused(from, "gives up the switch of epoch " + std::to_string(frozen.epoch));
  if (early && mutated(Mutation::kEarlyDropped)) return;
  peer.frozen = std::make_unique<mesh_wire::Frozen>(frozen);
  if (now) look_at_frozen();
}

void PathAgreement::on_leave(uint32_t from, const mesh_wire::Leave& leave) {
  peers_[from].left = true;
  peers_[from].left_ordinal = leave.ordinal;
  check_left();
}

void PathAgreement::on_end(uint32_t from, const std::string& why) {
  if (!peers_[from].left) return fail(Code::kRankLost, peers_[from].name + " is lost: it " + why);
  peers_[from].ended = true;
  check_left();
}

void PathAgreement::on_suspect(const std::string& why) {
  if (state_ != State::kSwitch) return;
  why_ = why;
  by_ = rank_;
  state_ = State::kFreeze;
}

mesh_wire::Message PathAgreement::freeze(Holdings holdings) {
  GATUN_CHECK(state_ == State::kFreeze);
  const mesh_wire::Frozen frozen{
      .epoch = epoch_, .job = job_.handle, .first_ordinal = first_ordinal_, .why = why_, .holdings = std::move(holdings)};
  peers_[rank_].frozen = std::make_unique<mesh_wire::Frozen>(frozen);
  state_ = State::kFrozen;
  look_at_frozen();
  check_left();
  return frozen;
}

// Somebody has frozen: so do we. All have: the plan.
void PathAgreement::look_at_frozen() {
  size_t frozen = 0;
  for (uint32_t from = 0; from < ranks(); ++from) {
    const auto& said = peers_[from].frozen;
    if (!said) continue;
    ++frozen;
    if (said->epoch != epoch_ || said->job != job_.handle || said->first_ordinal != first_ordinal_)
      return confused(from, "gives up another switch than ours");
    if (state_ != State::kSwitch) continue;
    why_ = said->why;  // ours to all is the same
    by_ = from;
    state_ = State::kFreeze;
  }
  const bool enough = mutated(Mutation::kPlanOfMajority) ? frozen > ranks() / 2 : frozen == ranks();
  if (state_ != State::kFrozen || !enough) return;
  std::vector<Holdings> by_rank;
  for (const Peer& peer : peers_) by_rank.push_back((peer.frozen ? peer : peers_[rank_]).frozen->holdings);
  Result<RecoveryPlan> plan = RecoveryPlan::make(by_rank, job_.window);
  if (!plan.ok()) return fail(plan.status().code(), plan.status().message());
  plan_ = std::make_unique<RecoveryPlan>(std::move(plan.value()));
  state_ = State::kRecover;
}

uint32_t PathAgreement::ring_ordinal() const {
  return plan_ordinal(plan_->end_op());
}

void PathAgreement::recovered() {
  GATUN_CHECK(state_ == State::kRecover);
  begin_epoch({}, ring_ordinal());
}

void PathAgreement::ready(const Job* job) {
  ready_ = job ? *job : Job{};
}

mesh_wire::Message PathAgreement::announce(uint32_t ordinal, const Contract& contract) {
  GATUN_CHECK(state_ == State::kRing && !announced_ && !before(ordinal, first_ordinal_));
  announced_ = true;
  announced_ready_ = ready_;
  announce_ = {.epoch = epoch_, .ordinal = ordinal, .contract = contract, .ready_job = ready_.handle};
  forget_announced(ordinal);
  peers_[rank_].announced = {announce_};
  check_left();
  return announce_;
}

bool PathAgreement::complete() {
  GATUN_CHECK(state_ == State::kRing && round() != Round::kNone && round() != Round::kWaiting);
  bool all_ready = announced_ready_.handle != 0;
  for (const Peer& peer : peers_) {
    const mesh_wire::Announce* const announced = announced_at(peer, announce_.ordinal);
    const uint32_t theirs = announced ? announced->ready_job : 0;
    const bool same = mutated(Mutation::kReadyNotCompared) ? theirs != 0 : theirs == announced_ready_.handle;
    all_ready &= same || mutated(Mutation::kReadyAlone);
  }
  if (mutated(Mutation::kGoOverLate) && rank_ == 0) all_ready = false;
  announced_ = false;
  forget_announced(announce_.ordinal + 1);
  if (all_ready) begin_epoch(announced_ready_, announce_.ordinal + 1);
  return all_ready;
}

void PathAgreement::begin_epoch(const Job& job, uint32_t first_ordinal) {
  ++epoch_;
  job_ = job;
  first_ordinal_ = first_ordinal;
  announced_ = false;
  ready_ = {};
  plan_.reset();
  for (Peer& peer : peers_) {
    std::erase_if(peer.announced, [&](const mesh_wire::Announce& announce) { return announce.epoch != epoch_; });
    if (peer.frozen && peer.frozen->epoch != epoch_) peer.frozen.reset();
  }
  state_ = job.handle != 0 ? State::kSwitch : State::kRing;
  if (state_ == State::kSwitch) look_at_frozen();
}

void PathAgreement::forget_announced(uint32_t below) {
  for (Peer& peer : peers_) {
    std::erase_if(peer.announced, [&](const mesh_wire::Announce& announce) {
      return announce.epoch == epoch_ && before(announce.ordinal, below);
    });
  }
}

const mesh_wire::Announce* PathAgreement::announced_at(const Peer& peer, uint32_t ordinal) const {
  for (const mesh_wire::Announce& announce : peer.announced) {
    if (announce.ordinal == ordinal) return &announce;
  }
  return nullptr;
}

bool PathAgreement::awaited(const Peer& peer) const {
  if (state_ == State::kFrozen) return !peer.frozen;
  return state_ == State::kRing && announced_ && peer.announced.empty();
}

uint64_t PathAgreement::missing() const {
  uint64_t missing = 0;
  for (uint32_t rank = 0; rank < ranks(); ++rank) missing |= uint64_t{awaited(peers_[rank])} << rank;
  return missing;
}

uint64_t PathAgreement::staying() const {
  uint64_t staying = 0;
  for (uint32_t rank = 0; rank < ranks(); ++rank) staying |= uint64_t{rank != rank_ && !peers_[rank].left} << rank;
  return staying;
}

PathAgreement::Round PathAgreement::round() const {
  if (state_ != State::kRing || !announced_) return Round::kNone;
  size_t here = 0;
  bool same = true;
  for (const Peer& peer : peers_) {
    const mesh_wire::Announce* const announced = announced_at(peer, announce_.ordinal);
    here += !peer.announced.empty();
    if (announced ? announced->contract != announce_.contract : !peer.announced.empty()) same = false;
  }
  const size_t needed = mutated(Mutation::kRoundOfMajority) ? ranks() / 2 + 1 : ranks();
  if (here < needed) return Round::kWaiting;
  return same || mutated(Mutation::kContractsOnRing) ? Round::kRun : Round::kMismatch;
}

std::string PathAgreement::mismatch() const {
  std::vector<const Contract*> by_rank;
  for (const Peer& peer : peers_) {
    const mesh_wire::Announce* const announced = announced_at(peer, announce_.ordinal);
    by_rank.push_back(announced ? &announced->contract : nullptr);
  }
  return describe_difference(announce_.ordinal, by_rank);
}

// What waits for a rank that has left waits for ever. Until its connection ends it still says what it holds.
void PathAgreement::check_left() {
  for (const Peer& peer : peers_) {
    if (!(state_ == State::kFrozen ? peer.ended : peer.left) || !awaited(peer)) continue;
    std::string text = peer.name + " has left after " + counted(peer.left_ordinal, "operation") + "; ";
    text += state_ == State::kFrozen ? "the switch was given up before all had their results (" + why_ + ")"
                                     : describe(announce_.contract) + " waits for it";
    return fail(Code::kRankLost, text);
  }
}

void PathAgreement::fail(Code code, std::string text) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  status_ = Status(code, std::move(text));
}

void PathAgreement::confused(uint32_t from, const std::string& what) {
  fail(Code::kInternal, peers_[from].name + " " + what + ", while " + peers_[rank_].name + " is in epoch " +
                            std::to_string(epoch_) + (job_.handle != 0 ? " on a switch" : " on the ring"));
}

}  // namespace gatun
