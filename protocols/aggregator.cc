#include "protocols/aggregator.h"

#include <algorithm>
#include <bit>

#include "protocols/seq.h"
#include "protocols/status.h"

namespace gatun {

Aggregator::Aggregator(const Config& config) : config_(config) {
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
  const int32_t behind_refused = serial_distance(header.seq, refused_seq_);
  if (refused_any_ && behind_refused > 0 && behind_refused < static_cast<int32_t>(config_.window)) {
    decision.drop = Drop::kStale;
    return decision;
  }
  // Two windows on, nobody sends void chunks any more; forget them before the numbers wrap around to them.
  if (behind_refused >= static_cast<int32_t>(2 * config_.window)) refused_any_ = false;

  const int32_t age = bank.state == kEmpty ? 1 : serial_distance(header.seq, bank.seq);
  if (age < 0) {
    decision.drop = Drop::kStale;
    return decision;
  }
  if (age > 0) {
    // A later chunk takes the bank. If the old one was still filling it was void (see worker.h) and its payloads go.
    if (bank.state == kFilling) decision.released = bank.with_payload;
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
    decision.action = Action::kRepeat;
    return decision;
  } else if (bank.state == kCompleted) {
    decision.action = Action::kRepeatUp;
    return decision;
  } else if (bank.arrived & bit) {
    decision.action = Action::kStatus;
    return decision;
  }

  const bool agrees = header.contract == bank.contract && header.elems == bank.elems && header.op == bank.op &&
                      header.elem_type == bank.elem_type && header.reduce_op == bank.reduce_op;
  if (!agrees || header.flags & kFlagRefused) bank.refused = true;
  if (serial_distance16(header.op, bank.op) < 0) bank.op = header.op;
  bank.arrived |= bit;
  bank.congested |= congested || header.flags & kFlagCongested;
  bank.contributors += header.contributors;
  const bool has_payload = !(header.flags & (kFlagEmpty | kFlagRefused));
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
  bank.congested = congested || header.flags & kFlagCongested;
  decision.action = Action::kDeliver;
  if (refused) begin_void(bank.seq);
  return decision;
}

void Aggregator::begin_void(uint32_t seq) {
  refused_any_ = true;
  refused_seq_ = seq;
  void_next_ = 1;
}

bool Aggregator::poll_void(uint32_t* index, uint64_t* released) {
  while (refused_any_ && void_next_ < config_.window) {
    const uint32_t seq = refused_seq_ + void_next_++;
    Bank& bank = banks_[index_of(seq)];
    if (bank.seq != seq || (bank.state != kFilling && bank.state != kCompleted)) continue;
    *index = index_of(seq);
    *released = bank.state == kFilling ? bank.with_payload : 0;
    bank.state = kVoid;
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
  return static_cast<uint32_t>(
      std::count_if(banks_.begin(), banks_.end(), [](const Bank& bank) { return bank.state == kFilling || bank.state == kCompleted; }));
}

}  // namespace gatun
