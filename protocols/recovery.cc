#include "protocols/recovery.h"

#include <algorithm>
#include <bit>

#include "protocols/aggregator.h"
#include "protocols/mutation.h"
#include "protocols/worker.h"

namespace gatun {
namespace {

static_assert(kHoldingsOperationsMax == 2 * kOperationsMax && kHoldingsTreesMax == kTreesMax);
constexpr size_t kPlanRanksMax = 64;  // bits of a mask

Status nonsense(uint32_t rank, const std::string& what) {
  return {Code::kInternal, "what rank " + std::to_string(rank) + " says it holds cannot be: " + what};
}

std::string spell(uint32_t op, uint64_t index) {
  return "chunk " + std::to_string(index) + " of operation " + std::to_string(op);
}

const Holdings::Operation* find(const Holdings& holdings, uint32_t op) {
  for (const Holdings::Operation& operation : holdings.operations) {
    if (operation.op == op) return &operation;
  }
  return nullptr;
}

uint64_t first_index(uint32_t tree, uint32_t trees, uint32_t op) {
  return (tree + trees - op % trees) % trees;
}

// All ranks have this operation, with the same contract.
bool agreed(std::span<const Holdings> by_rank, uint32_t op) {
  const Holdings::Operation* const first = find(by_rank[0], op);
  return first && std::all_of(by_rank.begin(), by_rank.end(), [&](const Holdings& holdings) {
           const Holdings::Operation* const same = find(holdings, op);
           return same && *same == *first;
         });
}

}  // namespace

bool RecoveryPlan::Held::has(const Place& place) const {
  return place < next || std::binary_search(ahead.begin(), ahead.end(), place);
}

Result<RecoveryPlan> RecoveryPlan::make(std::span<const Holdings> by_rank, uint32_t window) {
  GATUN_CHECK(!by_rank.empty() && by_rank.size() <= kPlanRanksMax && std::has_single_bit(window));
  RecoveryPlan plan;
  Status status = plan.find_range(by_rank);
  if (status.ok()) status = plan.judge_operations(by_rank);
  if (status.ok()) status = plan.take_in(by_rank, window);
  for (uint32_t tree = 0; status.ok() && tree < plan.trees(); ++tree) status = plan.hand_over(tree, window);
  if (!status.ok()) return status;
  std::sort(plan.handovers_.begin(), plan.handovers_.end(), [&](const Handover& a, const Handover& b) {
    return Place{a.op - plan.begin_op_, a.index} < Place{b.op - plan.begin_op_, b.index};
  });
  return plan;
}

// From the first operation that some rank has not ended to the last of which some rank has an answer.
Status RecoveryPlan::find_range(std::span<const Holdings> by_rank) {
  const uint32_t origin = by_rank[0].next_op;
  const auto trees = static_cast<uint32_t>(by_rank[0].trees.size());
  const auto from_origin = [&](uint32_t op) { return int64_t{serial_distance(op, origin)}; };
  int64_t begin = 0, end = INT64_MIN, next_min = 0;
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    const Holdings& holdings = by_rank[rank];
    if (holdings.trees.size() != trees || trees == 0 || trees > kTreesMax) return nonsense(rank, "the number of trees");
    if (holdings.operations.size() > kHoldingsOperationsMax) return nonsense(rank, "too many operations");
    const int64_t next_op = from_origin(holdings.next_op);
    next_min = std::min(next_min, next_op);
    begin = std::min(begin, next_op);
    for (const Holdings::Tree& tree : holdings.trees) begin = std::min(begin, from_origin(tree.next.op));
    int64_t before = INT64_MIN;
    for (const Holdings::Operation& operation : holdings.operations) {
      const int64_t op = from_origin(operation.op);
      if (op <= before || op >= next_op || operation.chunks == 0) return nonsense(rank, "its list of operations");
      before = op;
    }
  }
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    const Holdings& holdings = by_rank[rank];
    for (const Holdings::Operation& operation : holdings.operations) {
      const int64_t op = from_origin(operation.op);
      if (op < begin || op < end) continue;
      bool passed = false;
      for (uint32_t tree = 0; tree < trees; ++tree) {
        const Holdings::Tree& stream = holdings.trees[tree];
        const uint64_t first = first_index(tree, trees, operation.op);
        const int64_t behind = serial_distance(stream.next.op, operation.op);
        passed |= first < operation.chunks && (behind > 0 || (behind == 0 && stream.next.index > first));
        if (mutated(Mutation::kGapEndsPlan)) continue;
        for (const Holdings::Chunk& chunk : stream.ahead) passed |= chunk.op == operation.op;
      }
      if (passed && op >= next_min) return nonsense(rank, "an answer that needs ranks which have not begun");
      if (passed && agreed(by_rank, operation.op)) end = op + 1;
    }
    for (const uint32_t op : holdings.refused) end = std::max(end, from_origin(op) + 1);
  }
  end = std::max(end, begin);
  // A refusal that all have heard of, but perhaps not yet the sentence about it.
  int64_t first = begin;
  for (const Holdings& holdings : by_rank) {
    for (const uint32_t op : holdings.refused) {
      if (end - from_origin(op) <= int64_t{kOperationsMax}) first = std::min(first, from_origin(op));
    }
  }
  begin = first;
  if (end > next_min && end > begin) return nonsense(0, "operations ended that not all ranks have begun");
  if (end - begin > int64_t{kOperationsMax}) return nonsense(0, "more operations at once than there can be");
  begin_op_ = origin + static_cast<uint32_t>(begin);
  end_op_ = origin + static_cast<uint32_t>(end);
  return {};
}

Status RecoveryPlan::judge_operations(std::span<const Holdings> by_rank) {
  operations_.resize(end_op_ - begin_op_);
  for (uint32_t op = begin_op_; op != end_op_; ++op) {
    Operation& operation = operations_[op - begin_op_];
    uint32_t present = 0, refused = 0;
    for (uint32_t rank = 0; rank < by_rank.size(); ++rank) {
      const std::vector<uint32_t>& list = by_rank[rank].refused;
      present += find(by_rank[rank], op) != nullptr;
      refused += std::find(list.begin(), list.end(), op) != list.end();
    }
    if (agreed(by_rank, op)) {
      operation.fate = Fate::kFinish;
      operation.chunks = find(by_rank[0], op)->chunks;
    } else if (present > 0) {
      operation.fate = Fate::kMismatch;
      for (const Holdings& holdings : by_rank) {
        const Holdings::Operation* const own = find(holdings, op);
        operation.present.push_back(own != nullptr);
        operation.contracts.push_back(own ? own->contract : Contract{});
      }
    }
    if (refused > 0 && operation.fate != Fate::kMismatch && !mutated(Mutation::kRefusalForgotten))
      return nonsense(0, "operation " + std::to_string(op) + " was refused although all ranks agree on it");
  }
  return {};
}

Status RecoveryPlan::take_in(std::span<const Holdings> by_rank, uint32_t window) {
  held_.resize(by_rank.size());
  any_.resize(by_rank[0].trees.size());
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank) {
    held_[rank].resize(trees());
    for (uint32_t tree = 0; tree < trees(); ++tree) {
      const Status status = take_tree(by_rank[rank], rank, tree, window);
      if (!status.ok()) return status;
    }
  }
  for (uint32_t tree = 0; tree < trees(); ++tree) {
    Held& any = any_[tree];
    any.next = held_[0][tree].next;
    for (const auto& of_rank : held_) {
      any.next = std::max(any.next, of_rank[tree].next);
      any.ahead.insert(any.ahead.end(), of_rank[tree].ahead.begin(), of_rank[tree].ahead.end());
    }
    std::sort(any.ahead.begin(), any.ahead.end());
    any.ahead.erase(std::unique(any.ahead.begin(), any.ahead.end()), any.ahead.end());
    if (mutated(Mutation::kHoldingsOfFirst)) any = held_[0][tree];
  }
  return {};
}

Status RecoveryPlan::take_tree(const Holdings& holdings, uint32_t rank, uint32_t tree, uint32_t window) {
  const Holdings::Tree& stream = holdings.trees[tree];
  const auto place_of = [&](const Holdings::Chunk& chunk) {
    return Place{int64_t{serial_distance(chunk.op, begin_op_)}, chunk.index};
  };
  const auto exists = [&](const Holdings::Chunk& chunk) {
    const Holdings::Operation* const operation = find(holdings, chunk.op);
    return operation && chunk.index < operation->chunks && (chunk.op + chunk.index) % trees() == tree;
  };
  const uint64_t first = first_index(tree, trees(), stream.next.op);
  const bool at_end = stream.next.op == holdings.next_op && stream.next.index == first;
  if (!at_end && !exists(stream.next)) return nonsense(rank, "it waits for " + spell(stream.next.op, stream.next.index));
  if (stream.ahead.size() >= window) return nonsense(rank, "more answers ahead than the window has room for");
  Held& held = held_[rank][tree];
  held.next = place_of(stream.next);
  Place before = held.next;
  for (const Holdings::Chunk& chunk : stream.ahead) {
    const Place place = place_of(chunk);
    const bool known = exists(chunk) && fate(chunk.op) == Fate::kFinish;
    if (!known || place <= before) return nonsense(rank, "it holds " + spell(chunk.op, chunk.index));
    before = place;
    held.ahead.push_back(place);
  }
  return {};
}

// Goes along one tree's stream from the slowest rank's first missing chunk to the last chunk that anybody holds.
Status RecoveryPlan::hand_over(uint32_t tree, uint32_t window) {
  const Held& any = any_[tree];
  Place slowest = any.next;
  for (const auto& of_rank : held_) slowest = std::min(slowest, of_rank[tree].next);
  uint32_t visited = 0;
  for (uint32_t op = begin_op_; op != end_op_; ++op) {
    const Operation& operation = operations_[op - begin_op_];
    if (operation.fate != Fate::kFinish) continue;
    uint64_t index = first_index(tree, trees(), op);
    const int64_t number = op - begin_op_;
    if (number == slowest.op) index = std::max(index, slowest.index);
    for (; number >= slowest.op && index < operation.chunks; index += trees()) {
      const Place place{number, index};
      if (place >= any.next && (any.ahead.empty() || place > any.ahead.back())) return {};
      if (++visited > window) return {Code::kInternal, "ranks are further apart than the window: " + spell(op, index)};
      if (!any.has(place)) continue;
      Handover handover{.op = op, .index = index};
      uint64_t holders = 0;
      for (uint32_t rank = 0; rank < held_.size(); ++rank) {
        (held_[rank][tree].has(place) ? holders : handover.lacking) |= uint64_t{1} << rank;
      }
      if (handover.lacking == 0) continue;
      if (holders == 0) return {Code::kInternal, "nobody holds " + spell(op, index)};
      // Ranks take turns, so that not one hands over everything.
      handover.holder = static_cast<uint32_t>(index % held_.size());
      const auto ranks = static_cast<uint32_t>(held_.size());
      while (!(holders >> handover.holder & 1)) handover.holder = (handover.holder + 1) % ranks;
      handovers_.push_back(handover);
    }
  }
  return {};
}

RecoveryPlan::Fate RecoveryPlan::fate(uint32_t op) const {
  return op - begin_op_ < operations_.size() ? operations_[op - begin_op_].fate : Fate::kNothing;
}

uint64_t RecoveryPlan::chunks(uint32_t op) const {
  return op - begin_op_ < operations_.size() ? operations_[op - begin_op_].chunks : 0;
}

std::string RecoveryPlan::mismatch(uint32_t op, uint32_t ordinal) const {
  if (fate(op) != Fate::kMismatch) return "";
  const Operation& operation = operations_[op - begin_op_];
  std::vector<const Contract*> by_rank;
  for (size_t rank = 0; rank < operation.contracts.size(); ++rank) {
    by_rank.push_back(operation.present[rank] ? &operation.contracts[rank] : nullptr);
  }
  return describe_difference(ordinal, by_rank);
}

bool RecoveryPlan::reduce_anew(uint32_t op, uint64_t index) const {
  if (fate(op) != Fate::kFinish) return false;
  if (mutated(Mutation::kAnewThoughHeld) && index % 4 == 0) return true;
  return !any_[(op + index) % trees()].has({int64_t{op - begin_op_}, index});
}

bool RecoveryPlan::held(uint32_t rank, uint32_t op, uint64_t index) const {
  if (fate(op) != Fate::kFinish || rank >= held_.size()) return false;
  return held_[rank][(op + index) % trees()].has({int64_t{op - begin_op_}, index});
}

Retained::Retained(uint32_t trees, uint32_t window)
    : trees_(trees), window_(window), places_(size_t{trees} * window), hints_(trees) {
  GATUN_CHECK(std::has_single_bit(window));
}

uint32_t Retained::on_news(uint32_t tree, Seq seq, uint32_t op, uint64_t index) {
  const uint32_t kept = mutated(Mutation::kRetainHalf) ? std::max(1u, window_ / 2) : window_;
  const auto place = static_cast<uint32_t>(seq & (kept - 1));
  places_[size_t{tree} * window_ + place] = {.used = true, .op = op, .index = index};
  return place;
}

bool Retained::find(uint32_t op, uint64_t index, uint32_t* tree, uint32_t* place) const {
  *tree = static_cast<uint32_t>((op + index) % trees_);
  const Place* const places = &places_[size_t{*tree} * window_];
  uint32_t& hint = hints_[*tree];
  for (uint32_t i = 0; i < window_; ++i) {
    const uint32_t at = (hint + i) & (window_ - 1);
    if (!places[at].used || places[at].op != op || places[at].index != index) continue;
    hint = at;
    *place = at;
    return true;
  }
  return false;
}

}  // namespace gatun
