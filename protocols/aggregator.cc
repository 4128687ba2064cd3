#include "protocols/aggregator.h"

#include <algorithm>
#include <bit>

#include "protocols/seq.h"
#include "protocols/status.h"

namespace gatun {

Aggregator::Aggregator(const Config& config) : config_(config), void_next_(config.window) {
  GATUN_CHECK(std::has_single_bit(config.window) && config.window <= kWindowMax);
  GATUN_CHECK(config.children >= 1 && config.children <= kChildrenMax);
  all_ = config.children == 64 ? ~uint64_t{0} : (uint64_t{1} << config.children) - 1;
  banks_.resize(size_t{2} * config.window);
}

Aggregator::Decision Aggregator::on_contribution(const Header& header, bool congested) {
  Decision decision;
  decision.bank = index_of(header.seq);
  if (header.child >= config_.children) {
    decision.drop = Drop::kBadChild;
    return decision;
  }
  Bank& bank = banks_[decision.bank];
  const uint64_t bit = uint64_t{1} << header.child;
  int32_t age = bank.state == kEmpty ? 1 : serial_distance(header.seq, bank.seq);
  if (mutated(Mutation::kPlainLess) && bank.state != kEmpty) age = int{header.seq > bank.seq} - int{header.seq < bank.seq};
  if (mutated(Mutation::kNoChunkNumber)) {
    banks_[decision.bank ^ config_.window].arrived &= ~bit;
    age = bank.state == kEmpty || (bank.state != kFilling && !(bank.arrived & bit));
  }
  if (age < 0) {
    decision.drop = Drop::kStale;
    return decision;
  }
  if (age > 0) {
    // A later chunk takes the bank. If the old one was still filling it was void (see worker.h) and its payloads go.
    decision.released = held(bank);
    bank = Bank{.seq = header.seq,
                .state = kFilling,
                .contract = header.contract,
                .elems = header.elems,
                .op = header.op,
                .elem_type = header.elem_type,
                .reduce_op = header.reduce_op};
  } else if (bank.state == kVoid) {
    decision.drop = Drop::kStale;
    return decision;
  } else if (bank.state == kAnswered) {
    decision.action = mutated(Mutation::kNoRepeatDown) ? Action::kDrop : Action::kRepeat;
    return decision;
  } else if (bank.state == kCompleted) {
    decision.action = mutated(Mutation::kNoRepeatUp) ? Action::kDrop : Action::kRepeatUp;
    return decision;
  } else if (bank.arrived & bit && !mutated(Mutation::kRepeatCounts)) {
    decision.action = Action::kStatus;
    return decision;
  }

  const bool agrees = header.contract == bank.contract && header.elems == bank.elems && header.op == bank.op &&
                      header.elem_type == bank.elem_type && header.reduce_op == bank.reduce_op;
  if (!agrees && !mutated(Mutation::kContractIgnored)) bank.refused = true;
  if (header.flags & kFlagRefused && !mutated(Mutation::kChildRefusalIgnored)) bank.refused = true;
  const bool lower = mutated(Mutation::kOpPlainLess) ? header.op < bank.op : serial_distance16(header.op, bank.op) < 0;
  if (lower) bank.op = header.op;
  bank.arrived |= bit;
  if (!mutated(Mutation::kMarkNotOred)) bank.congested |= congested || header.flags & kFlagCongested;
  bank.contributors += header.contributors;
  const bool has_payload = !(header.flags & (kFlagEmpty | kFlagRefused)) || mutated(Mutation::kEmptyHasPayload);
  if (has_payload) {
    bank.with_payload |= bit;
    if (header.flags & kFlagPartial) bank.partial |= bit;
  }
  decision.action = Action::kKeep;
  if (bank.arrived != all_) return decision;

  bank.state = config_.root ? kAnswered : kCompleted;
  decision.action = bank.refused ? Action::kRefuse : Action::kComplete;
  if (bank.refused && config_.root) begin_void(bank.seq);
  return decision;
}

Aggregator::Decision Aggregator::on_result(const Header& header, bool congested) {
  Decision decision;
  decision.bank = index_of(header.seq);
  Bank& bank = banks_[decision.bank];
  if (config_.root || bank.seq != header.seq || (bank.state != kCompleted && bank.state != kAnswered)) {
    decision.drop = Drop::kUnexpected;
    return decision;
  }
  if (bank.state == kAnswered) {
    decision.drop = Drop::kStale;
    return decision;
  }
  const bool refused = header.flags & kFlagRefused;
  const bool agrees = header.contract == bank.contract && header.elems == bank.elems && header.elem_type == bank.elem_type &&
                      header.reduce_op == bank.reduce_op;
  if (!refused && (bank.refused || !agrees)) {
    decision.drop = Drop::kFields;  // the parent answers something that this switch never sent
    return decision;
  }
  bank.state = kAnswered;
  bank.refused = refused;
  bank.op = header.op;
  bank.contributors = header.contributors;
  // Of the whole tree now, not only of what is below this switch.
  if (!mutated(Mutation::kPayloadOfOthers)) bank.with_payload = header.flags & kFlagEmpty ? 0 : 1;
  bank.congested = congested || header.flags & kFlagCongested;
  decision.action = Action::kDeliver;
  if (refused) begin_void(bank.seq);
  return decision;
}

// Everybody contributed to the refused chunk and so holds all answers up to W before it: what these banks hold besides the
// void chunks nobody can ask for. Marked so, they also turn away contributions that come late.
void Aggregator::begin_void(uint32_t refused_seq) {
  if (mutated(Mutation::kVoidIgnored)) return;
  for (uint32_t i = 1; i < 2 * config_.window; ++i) {
    const uint32_t seq = refused_seq + i;
    Bank& bank = banks_[index_of(seq)];
    if (i < config_.window) {
      if (bank.state != kEmpty && serial_distance(bank.seq, seq) > 0) continue;
      bank = Bank{.seq = seq, .state = kVoid, .with_payload = held(bank)};
    } else if (bank.state == kVoid && bank.seq == seq && !mutated(Mutation::kVoidForever)) {
      bank.seq = seq - 2 * config_.window;  // behind a refused chunk that is void itself: this chunk is still to come
    }
  }
  refused_seq_ = refused_seq;
  void_next_ = 1;
}

bool Aggregator::poll_void(uint32_t* index, uint64_t* released) {
  while (void_next_ < config_.window) {
    *index = index_of(refused_seq_ + void_next_++);
    Bank& bank = banks_[*index];
    if (bank.state != kVoid || bank.with_payload == 0) continue;
    *released = bank.with_payload;
    bank.with_payload = 0;
    return true;
  }
  return false;
}

Header Aggregator::make_header(uint32_t index) const {
  const Bank& bank = banks_[index];
  Header header;
  header.type = bank.state == kAnswered ? PacketType::kResult : PacketType::kData;
  header.seq = bank.seq;
  header.contract = bank.contract;
  header.op = bank.op;
  header.contributors = static_cast<uint16_t>(bank.contributors);
  header.elems = bank.elems;
  header.elem_type = bank.elem_type;
  header.reduce_op = bank.reduce_op;
  if (bank.congested) header.flags |= kFlagCongested;
  if (bank.refused) {
    header.flags |= kFlagRefused;
  } else if (bank.with_payload == 0) {
    header.flags |= kFlagEmpty;
  }
  return header;
}

uint32_t Aggregator::open_banks() const {
  return static_cast<uint32_t>(std::count_if(
      banks_.begin(), banks_.end(), [](const Bank& bank) { return bank.state == kFilling || bank.state == kCompleted; }));
}

}  // namespace gatun
