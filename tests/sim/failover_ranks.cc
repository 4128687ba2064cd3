#include <algorithm>

#include "tests/sim/failover.h"

// What each rank does: freeze, recover, run operations on the ring, go over to a switch.

namespace gatun::sim {
namespace {

constexpr int kStepsMax = 4000;  // of one rank at one time

}  // namespace

void Failover::step(uint32_t rank) {
  for (int i = 0; !world_.failed() && !finished_ && step_once(rank); ++i) {
    if (i == kStepsMax) world_.fail("storm", "rank %u steps for ever", rank);
  }
  Member& member = members_[rank];
  if (host(rank).done() && !member.left && !member.failed && !world_.failed() && !finished_) {
    member.left = true;
    mesh_all(rank, mesh_wire::Leave{static_cast<uint32_t>(plan_.calls.size())});
  }
  check_finished();
}

bool Failover::step_once(uint32_t rank) {
  Member& member = members_[rank];
  switch (member.path->state()) {
    case PathAgreement::State::kFreeze:
      world_.marks.hit(Mark::kFrozen);
      give_up(member.at);
      mesh_all(rank, member.path->freeze(host(rank).freeze()));
      return true;
    case PathAgreement::State::kRecover: return recover(rank);
    case PathAgreement::State::kRing: return ring(rank);
    case PathAgreement::State::kFailed: on_failed(rank); return false;
    case PathAgreement::State::kSwitch:
    case PathAgreement::State::kFrozen: return false;
  }
  return false;
}

// Only a rank's death ends a job, and the error names it.
void Failover::on_failed(uint32_t rank) {
  Member& member = members_[rank];
  if (member.failed) return;
  member.failed = true;
  if (!host(rank).frozen()) host(rank).freeze();
  give_up(member.at);
  const Status& status = member.path->status();
  if (world_.trace) world_.log("rank %u of job %u fails: %s", rank, plan_.line, status.message());
  const bool named = std::string(status.message()).find("rank " + std::to_string(died_) + ".") != std::string::npos;
  const bool lost = status.code() == Code::kRankLost || status.code() == Code::kAborted;
  if (died_ == kRanksMax || !lost || !named) world_.fail("blame", "rank %u fails: %s", rank, status.message());
  mesh_all(rank, mesh_wire::Abort{status.message()});
}

Failover::Exchange& Failover::exchange(uint32_t rank, uint32_t ordinal) {
  Exchange& exchange = members_[rank].exchanges[ordinal];
  exchange.from.resize(plan_.ranks);
  return exchange;
}

// Sends what this rank brings to the chunks of exchange.anew to all.
void Failover::send_part(uint32_t rank, uint32_t ordinal) {
  Exchange& own = exchange(rank, ordinal);
  const uint32_t index = index_of(rank, ordinal);
  own.begun = true;
  if (!host(rank).running_at(index)) {
    world_.fail("inputs", "rank %u: operation %u is to be reduced and has ended here", rank, ordinal);
    return;
  }
  Part part{.chunks = {}, .arrived = true};
  for (const uint64_t chunk : own.anew) part.chunks.emplace_back(chunk, host(rank).input_of(index, chunk));
  for (uint32_t to = 0; to < plan_.ranks; ++to) {
    if (to != rank) mesh(rank, to, {.kind = Kind::kPart, .ordinal = ordinal, .message = {}, .chunks = part.chunks});
  }
  own.from[rank] = std::move(part);
}

// Once all parts are here.
bool Failover::reduce(uint32_t rank, uint32_t ordinal) {
  Exchange& own = exchange(rank, ordinal);
  if (!std::all_of(own.from.begin(), own.from.end(), [](const Part& part) { return part.arrived; })) return false;
  const uint32_t index = index_of(rank, ordinal);
  const JobPlan& job = epoch(rank).plan;
  const OpPlan& op = host(rank).op_at(index);
  const Shape shape(job, op);
  for (size_t i = 0; i < own.anew.size() && !world_.failed(); ++i) {
    const uint64_t chunk = own.anew[i];
    const std::byte* of_rank[kRanksMax] = {};
    bool any = false;
    for (uint32_t from = 0; from < plan_.ranks; ++from) {
      const auto& chunks = own.from[from].chunks;
      const size_t bytes = shape.gives(from, chunk) ? shape.bytes(chunk) : 0;
      if (chunks.size() != own.anew.size() || chunks[i].first != chunk || chunks[i].second.size() != bytes) {
        world_.fail("parts", "rank %u: rank %u brings other chunks to operation %u", rank, from, ordinal);
        return false;
      }
      of_rank[from] = chunks[i].second.data();
      any |= shape.gives(from, chunk);
    }
    Bytes result(any ? shape.bytes(chunk) : 0);
    if (!result.empty()) reduce_chunk(job, op, job.first_op + index, chunk, {of_rank, plan_.ranks}, result.data());
    host(rank).deliver(index, chunk, result);
  }
  return true;
}

void Failover::hand_over(uint32_t rank, const RecoveryPlan& plan) {
  const Member& member = members_[rank];
  std::map<std::pair<uint32_t, uint32_t>, Event> parcels;  // by operation and receiver
  for (const RecoveryPlan::Handover& handover : plan.handovers()) {
    if (handover.holder != rank) continue;
    const uint32_t ordinal = member.path->plan_ordinal(handover.op);
    Bytes payload;
    if (!host(rank).retained(index_of(rank, ordinal), handover.index, &payload)) {
      world_.fail("retained", "rank %u has to hand over chunk %llu of operation %u and has not kept it", rank,
                  static_cast<unsigned long long>(handover.index), ordinal);
      return;
    }
    world_.marks.hit(Mark::kHandover);
    if (!host(rank).running_at(index_of(rank, ordinal))) world_.marks.hit(Mark::kPlanDoneElsewhere);
    for (uint32_t to = 0; to < plan_.ranks; ++to) {
      if (!(handover.lacking >> to & 1)) continue;
      Event& parcel = parcels[{ordinal, to}];
      parcel.kind = Kind::kHanded;
      parcel.ordinal = ordinal;
      parcel.chunks.emplace_back(handover.index, payload);
    }
  }
  for (auto& [key, parcel] : parcels) mesh(rank, key.second, std::move(parcel));
}

void Failover::begin_recovery(uint32_t rank) {
  Member& member = members_[rank];
  member.planned = true;
  const RecoveryPlan& plan = member.path->plan();
  if (plan.begin_op() == plan.end_op()) world_.marks.hit(Mark::kPlanEmpty);
  if (world_.trace) {
    world_.log("rank %u of job %u: the plan is operations %#x to %#x with %zu handovers", rank, plan_.line, plan.begin_op(),
               plan.end_op(), plan.handovers().size());
  }
  for (uint32_t op = plan.begin_op(); op != plan.end_op() && !world_.failed(); ++op) {
    const uint32_t ordinal = member.path->plan_ordinal(op), index = index_of(rank, ordinal);
    if (plan.fate(op) == RecoveryPlan::Fate::kMismatch && host(rank).running_at(index)) {
      world_.marks.hit(Mark::kPlanMismatch);
      if (plan.mismatch(op, ordinal).empty()) world_.fail("sentence", "operation %u fails without a word", ordinal);
      host(rank).fail(index);
    }
    if (plan.fate(op) != RecoveryPlan::Fate::kFinish) continue;
    Exchange& own = exchange(rank, ordinal);
    for (uint64_t chunk = 0; chunk < plan.chunks(op); ++chunk) {
      if (plan.reduce_anew(op, chunk)) own.anew.push_back(chunk);
    }
    world_.marks.hit(Mark::kReducedAnew, own.anew.size());
    if (!own.anew.empty()) send_part(rank, ordinal);
  }
  hand_over(rank, plan);
}

// Bytes of the plan come from a rank that died before it sent them: where they are waited for, their stream has ended.
bool Failover::waits_in_vain(uint32_t rank) {
  const Member& member = members_[rank];
  if (!member.sees_end) return false;
  for (const Event& event : events_) {
    const bool bytes = event.kind == Kind::kPart || event.kind == Kind::kHanded;
    if (bytes && event.from == died_ && event.rank == rank) return false;
  }
  const RecoveryPlan& plan = member.path->plan();
  for (uint32_t op = plan.begin_op(); op != plan.end_op(); ++op) {
    const Exchange& own = exchange(rank, member.path->plan_ordinal(op));
    if (!own.anew.empty() && !own.from[died_].arrived) return true;
  }
  return std::any_of(plan.handovers().begin(), plan.handovers().end(), [&](const RecoveryPlan::Handover& handover) {
    const bool ours = handover.holder == died_ && (handover.lacking >> rank & 1) != 0;
    return ours && !(exchange(rank, member.path->plan_ordinal(handover.op)).handed_by >> died_ & 1);
  });
}

// True once this rank has everything of the plan.
bool Failover::recover(uint32_t rank) {
  Member& member = members_[rank];
  if (!member.planned) begin_recovery(rank);
  if (world_.failed()) return false;
  const RecoveryPlan& plan = member.path->plan();
  bool all = true;
  for (uint32_t op = plan.begin_op(); op != plan.end_op() && !world_.failed(); ++op) {
    const uint32_t ordinal = member.path->plan_ordinal(op), index = index_of(rank, ordinal);
    Exchange& own = exchange(rank, ordinal);
    for (const auto& [chunk, payload] : own.handed) {
      if (!world_.failed()) host(rank).deliver(index, chunk, payload);
    }
    own.handed.clear();
    if (!own.anew.empty() && reduce(rank, ordinal)) own.anew.clear();
    all &= !host(rank).running_at(index);
  }
  if (!all && waits_in_vain(rank)) {
    member.path->on_failure({Code::kRankLost, "rank " + std::to_string(died_) + ". ended before it sent its bytes"});
  }
  if (!all || world_.failed()) return member.path->state() == PathAgreement::State::kFailed;
  member.next_ordinal = member.path->ring_ordinal();
  member.planned = false;
  member.exchanges.erase(member.exchanges.begin(), member.exchanges.lower_bound(member.next_ordinal));
  member.path->recovered();
  return true;
}

bool Failover::ring(uint32_t rank) {
  Member& member = members_[rank];
  const uint32_t ordinal = member.next_ordinal, index = index_of(rank, ordinal);
  switch (member.path->round()) {
    case PathAgreement::Round::kNone: {
      if (index >= host(rank).called()) return false;
      const OpPlan& op = host(rank).op_at(index);
      if (Shape(epoch(rank).plan, op).chunks() == 0) {
        ++member.next_ordinal;
        return true;
      }
      if (member.ready != 0) {
        const JobPlan& next = epochs_[member.ready]->plan;
        const PathAgreement::Job job{.handle = next.handle, .window = next.window, .first_op = next.first_op};
        member.path->ready(&job);
        if (epochs_[member.ready]->crashed) world_.marks.hit(Mark::kReadyInVain);
      } else {
        member.path->ready(nullptr);
      }
      mesh_all(rank, member.path->announce(ordinal, op.contract()));
      return true;
    }
    case PathAgreement::Round::kWaiting: return false;
    case PathAgreement::Round::kRun:
      if (!run_on_ring(rank)) return false;
      world_.marks.hit(Mark::kRingOp);
      break;
    case PathAgreement::Round::kMismatch:
      world_.marks.hit(Mark::kRingMismatch);
      if (member.path->mismatch().empty()) world_.fail("sentence", "operation %u fails without a word", ordinal);
      host(rank).fail(index);
      break;
  }
  if (world_.failed()) return false;
  member.exchanges.erase(ordinal);
  ++member.next_ordinal;
  if (member.path->complete()) go_over(rank);
  return true;
}

bool Failover::run_on_ring(uint32_t rank) {
  const uint32_t ordinal = members_[rank].next_ordinal;
  Exchange& own = exchange(rank, ordinal);
  if (!own.begun) {
    const uint64_t chunks = Shape(epoch(rank).plan, host(rank).op_at(index_of(rank, ordinal))).chunks();
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) own.anew.push_back(chunk);
    send_part(rank, ordinal);
  }
  return reduce(rank, ordinal);
}

void Failover::go_over(uint32_t rank) {
  Member& member = members_[rank];
  world_.marks.hit(Mark::kGoneOver);
  if (member.path->state() == PathAgreement::State::kFreeze) world_.marks.hit(Mark::kFrozenEarly);
  size_t to = 0;
  for (size_t i = 1; i < epochs_.size(); ++i) {
    if (epochs_[i]->plan.handle == member.path->job()) to = i;
  }
  if (to <= member.at) {
    world_.fail("boundary", "rank %u goes over to a job that it has not", rank);
    return;
  }
  if (world_.trace) world_.log("rank %u of job %u goes over to epoch %zu", rank, plan_.line, to);
  host(rank).check_not_begun();
  host(rank).die();
  set_first(*epochs_[to], member.path->first_ordinal());
  if (world_.failed()) return;
  member.at = to;
  member.ready = 0;
  ++epochs_[to]->gone_over;
  host(rank).start(world_.now);
  at(world_.now + world_.plan.failover.detect / 2, {.kind = Kind::kDetect, .rank = rank, .epoch = to});
}

}  // namespace gatun::sim
