#include "protocols/worker.h"

#include <algorithm>
#include <bit>

#include "protocols/mutation.h"
#include "protocols/status.h"

namespace gatun {
namespace {

// A chunk counts as lost when a chunk sent this much later has been answered; as TCP's three duplicate acknowledgements.
constexpr Seq kReorderChunks = 3;
constexpr uint32_t kStatusBackoffMax = 3;  // doublings between questions to a switch that said "still waiting"

RttEstimator make_rtt(const Worker::Config& config) {
  if (config.reliable) return {config.rto_max, config.rto_max, config.rto_max};
  return {config.rto_initial, config.rto_min, config.rto_max};
}

}  // namespace

Worker::Tree::Tree(const Config& config)
    : base(config.first_seq),
      next(config.first_seq),
      confirm(config.first_seq),
      examined(config.first_seq),
      send_op(config.first_op),
      send_index(0),
      cwnd(config.reliable ? config.window : config.window_initial, config.window),
      rtt(make_rtt(config)),
      due_rto(rtt.rto_ns(0)),
      entries(config.window) {}

Worker::Worker(const Config& config)
    : config_(config),
      operations_(kOperationsMax),
      op_head_(config.first_op),
      op_tail_(config.first_op),
      recent_(kHoldingsOperationsMax) {
  GATUN_CHECK(std::has_single_bit(config.window));
  GATUN_CHECK(config.trees >= 1 && config.trees <= kTreesMax);
  trees_.reserve(config.trees);
  for (uint32_t i = 0; i < config.trees; ++i) {
    trees_.emplace_back(config);
    trees_[i].send_index = first_index(i, config.first_op);
  }
}

uint32_t Worker::submit(uint64_t chunks, const Contract& contract) {
  GATUN_CHECK(can_submit());
  const uint32_t op = op_tail_++;
  operation(op) = Operation{.chunks = chunks};
  if (chunks > 0) recent_[recent_count_++ & (recent_.size() - 1)] = {.op = op, .chunks = chunks, .contract = contract};
  retire_operations();
  return op;
}

bool Worker::idle() const {
  return op_head_ == op_tail_ &&
         std::all_of(trees_.begin(), trees_.end(), [](const Tree& tree) { return tree.outstanding == 0 && !tree.voiding; });
}

Worker::Outcome Worker::on_result(uint32_t tree_index, uint32_t wire, uint16_t op, bool congested, TimeNs now) {
  if (deaf()) return {.verdict = Verdict::kOld};
  Outcome outcome;
  if (tree_index >= config_.trees) return outcome;
  Tree& tree = trees_[tree_index];
  const Seq seq = mutated(Mutation::kNoWrap) ? wire : extend_seq(tree.base, wire);
  if (seq >= tree.next) return outcome;
  outcome.verdict = Verdict::kOld;
  if (seq < tree.base || (tree.voiding && seq >= tree.refused)) return outcome;
  Entry& e = entry(tree, seq);
  if (e.state != kSent && !mutated(Mutation::kAcceptTwice)) return outcome;
  if (static_cast<uint16_t>(e.op) != op) {
    outcome.verdict = Verdict::kForeign;
    return outcome;
  }
  if (seq > tree.confirm && !mutated(Mutation::kAcceptEarly)) {
    hold_back(e, &outcome);
    Entry& first = entry(tree, tree.confirm);
    if (seq - tree.confirm >= kReorderChunks && first.repeats == 0) make_due(tree, first, now);
    return outcome;
  }
  return ack(tree, seq, congested, now);
}

Worker::Outcome Worker::ack(Tree& tree, Seq seq, bool congested, TimeNs now) {
  Entry& e = entry(tree, seq);
  Outcome outcome{.verdict = Verdict::kNews, .op = e.op, .index = e.index, .seq = seq};
  if (e.repeats > 0) {
    if (!e.waited && e.timeouts > 0) tree.rtt.on_backed_off(e.timeouts);
  } else if (!e.waited) {
    tree.rtt.on_sample(now - e.sent_at);
  }
  bring_forward(tree);
  e.state = kHeld;
  --tree.outstanding;
  marked_ += congested;
  tree.cwnd.on_result(seq, tree.next, congested);
  if (e.tombstone) {
    outcome.verdict = Verdict::kOld;
  } else {
    Operation& operation_ref = operation(e.op);
    outcome.op_done = ++operation_ref.held == operation_ref.chunks;
  }
  if (tree.restarting && seq == tree.barrier) tree.restarting = false;
  find_losses(tree, seq, now);
  if (seq == tree.confirm) advance_confirm(tree, now);
  advance_base(tree, now);
  if (outcome.op_done) retire_operations();
  return outcome;
}

// The timeout has come down to half of what the chunks in flight were given, or less: they are given the new one.
void Worker::bring_forward(Tree& tree) {
  const TimeNs rto = tree.rtt.rto_ns(0);
  if (2 * rto > tree.due_rto) {
    tree.due_rto = std::max(tree.due_rto, rto);
    return;
  }
  tree.due_rto = rto;
  for (Seq seq = tree.base; seq < tree.next; ++seq) {
    Entry& e = entry(tree, seq);
    if (e.state == kSent && !e.waited) make_due(tree, e, std::min(e.due_at, e.sent_at + tree.rtt.rto_ns(e.repeats)));
  }
}

// Later chunks are being answered: what was sent clearly earlier and has no answer is asked for again, once.
void Worker::find_losses(Tree& tree, Seq seq, TimeNs now) {
  tree.examined = std::max(tree.examined, tree.base);
  for (; tree.examined + kReorderChunks <= seq; ++tree.examined) {
    Entry& e = entry(tree, tree.examined);
    if (e.state != kSent || e.repeats > 0) continue;
    make_due(tree, e, now);
    if (!config_.reliable) tree.cwnd.on_loss(tree.examined, tree.next);
  }
}

// The operation that begins at `confirm` is confirmed: answers up to the next operation's first chunk may be accepted, and
// those that came too early are asked for again.
void Worker::advance_confirm(Tree& tree, TimeNs now) {
  do {
    if (++tree.confirm == tree.next) return;
    Entry& e = entry(tree, tree.confirm);
    if (e.held_back && e.state == kSent) make_due(tree, e, now);
    e.held_back = false;
  } while (!(entry(tree, tree.confirm).first && entry(tree, tree.confirm).state == kSent));
}

void Worker::advance_base(Tree& tree, TimeNs now) {
  const Seq before = tree.base;
  const Seq end = tree.voiding ? tree.refused : tree.next;
  while (tree.base < end && entry(tree, tree.base).state == kHeld) entry(tree, tree.base++).state = kNone;
  if (tree.voiding && tree.base == tree.refused) {
    const uint32_t skipped = mutated(Mutation::kVoidNotSkipped) ? 1 : config_.window;
    tree.base = tree.next = tree.confirm = tree.examined = tree.barrier = tree.refused + skipped;
    tree.voiding = false;
    tree.restarting = !mutated(Mutation::kNoRestart);
  }
  if (tree.base != before && tree.stalled) {
    // The late rank has come; the other answers are on their way.
    tree.stalled = false;
    for (Seq seq = tree.base; seq < (tree.voiding ? tree.refused : tree.next); ++seq) {
      Entry& e = entry(tree, seq);
      e.waited = true;
      if (e.state == kSent) make_due(tree, e, now + tree.rtt.rto_ns(0));
    }
  }
  if (tree.outstanding == 0) tree.timer = kNever;
}

Worker::Outcome Worker::on_refused(uint32_t tree_index, uint32_t wire, uint16_t lowest_op, TimeNs now) {
  if (deaf()) return {.verdict = Verdict::kOld};
  Outcome outcome;
  if (tree_index >= config_.trees) return outcome;
  Tree& tree = trees_[tree_index];
  const Seq seq = extend_seq(tree.base, wire);
  if (seq >= tree.next) return outcome;
  outcome.verdict = Verdict::kOld;
  if (seq < tree.base || (tree.voiding && seq >= tree.refused)) return outcome;
  Entry& e = entry(tree, seq);
  if (e.state != kSent) return outcome;
  const int16_t behind = serial_distance16(lowest_op, static_cast<uint16_t>(e.op));
  if (!e.first || behind > 0) {
    outcome.verdict = Verdict::kForeign;
    return outcome;
  }
  if (seq != tree.confirm && !mutated(Mutation::kRefusalEarly)) {
    hold_back(e, &outcome);
    return outcome;
  }

  outcome.verdict = Verdict::kFailed;
  outcome.op = e.op + static_cast<uint32_t>(static_cast<int32_t>(behind));
  // Our own operation here begins again after the void chunks, unless it is the one that failed.
  tree.send_op = e.op;
  tree.send_index = first_index(tree_index, e.op);
  for (Seq s = seq; s < tree.next; ++s) {
    Entry& voided = entry(tree, s);
    if (voided.state == kSent) --tree.outstanding;
    voided = Entry{};
  }
  tree.voiding = true;
  tree.refused = seq;
  tree.refused_op = outcome.op;
  tree.restarting = false;
  // An operation without chunks was done at once here, though another rank brought some.
  const Operation& named = operation(outcome.op);
  if (live(outcome.op) && !named.failed && named.held != named.chunks) {
    outcome.op_done = true;
    fail(outcome.op);
  }
  advance_base(tree, now);
  retire_operations();
  return outcome;
}

// Chunks of the failed operation that are in flight on other trees keep their place until they are answered.
void Worker::fail(uint32_t op) {
  operation(op).failed = true;
  for (Tree& tree : trees_) {
    for (Entry& e : tree.entries) {
      if (e.state == kSent && e.op == op) e.tombstone = !mutated(Mutation::kNoTombstone);
    }
  }
}

void Worker::retire_operations() {
  while (op_head_ != op_tail_) {
    const Operation& head = operation(op_head_);
    if (!head.failed && head.held != head.chunks) return;
    ++op_head_;
  }
}

void Worker::on_status(uint32_t tree_index, uint32_t wire, TimeNs now) {
  if (deaf() || tree_index >= config_.trees) return;
  Tree& tree = trees_[tree_index];
  const Seq seq = extend_seq(tree.base, wire);
  if (seq < tree.base || seq >= tree.next || (tree.voiding && seq >= tree.refused)) return;
  Entry& e = entry(tree, seq);
  if (e.state != kSent) return;
  if (mutated(Mutation::kStatusAnswers)) ack(tree, seq, false, now);
  e.told = e.waited = true;
  e.due_at = now + tree.rtt.rto_ns(std::min<uint32_t>(e.repeats, kStatusBackoffMax));
  tree.stalled = true;
}

bool Worker::find(uint32_t tree_index, uint32_t wire, Chunk* chunk) const {
  if (deaf() || tree_index >= config_.trees) return false;
  const Tree& tree = trees_[tree_index];
  const Seq seq = extend_seq(tree.base, wire);
  if (seq < tree.base || seq >= tree.next || (tree.voiding && seq >= tree.refused)) return false;
  const Entry& e = entry(tree, seq);
  if (e.state != kSent) return false;
  *chunk = {
      .tree = tree_index, .seq = seq, .op = e.op, .index = e.index, .repeat = e.repeats > 0, .void_payload = e.tombstone};
  return true;
}

TimeNs Worker::poll_timer() const {
  if (mutated(Mutation::kNoTimer)) return kNever;
  TimeNs earliest = kNever;
  if (frozen_) return earliest;
  for (const Tree& tree : trees_) {
    if (tree.outstanding > 0) earliest = std::min(earliest, tree.timer);
  }
  return earliest;
}

bool Worker::poll_send(TimeNs now, Chunk* chunk) {
  if (frozen_) return false;
  uint32_t index = poll_tree_;
  for (uint32_t i = 0; i < config_.trees; ++i) {
    Tree& tree = trees_[index];
    const uint32_t following = index + 1 < config_.trees ? index + 1 : 0;
    // Most trees have nothing to send most of the time.
    const bool due = tree.outstanding > 0 && now >= tree.timer, room = tree.outstanding < tree.cwnd.chunks();
    if ((due && poll_repeat(tree, index, now, chunk)) || (room && poll_new(tree, index, now, chunk))) {
      poll_tree_ = following;
      return true;
    }
    index = following;
  }
  return false;
}

bool Worker::poll_repeat(Tree& tree, uint32_t tree_index, TimeNs now, Chunk* chunk) {
  const Seq end = tree.voiding ? tree.refused : tree.next;
  TimeNs earliest = kNever;
  bool oldest = true;
  for (Seq seq = tree.base; seq < end; ++seq) {
    Entry& e = entry(tree, seq);
    if (e.state != kSent) continue;
    if (!oldest && tree.stalled) break;
    if (e.due_at > now) {
      earliest = std::min(earliest, e.due_at);
      oldest = false;
      continue;
    }
    const bool timed_out = now - e.sent_at >= tree.rtt.rto_ns(e.repeats);
    if (oldest && timed_out && !e.told && !config_.reliable) tree.cwnd.on_timeout();
    if (timed_out && !e.told && e.timeouts < UINT8_MAX) ++e.timeouts;
    e.told = false;
    if (e.repeats < UINT8_MAX) ++e.repeats;
    e.sent_at = now;
    e.due_at = now + tree.rtt.rto_ns(e.repeats);
    ++resent_;
    *chunk = {.tree = tree_index, .seq = seq, .op = e.op, .index = e.index, .repeat = true, .void_payload = e.tombstone};
    return true;  // the timer stays in the past until a scan finds nothing due
  }
  tree.timer = earliest;
  return false;
}

// Finds the next chunk that this tree has to carry for the first time.
bool Worker::seek_chunk(Tree& tree, uint32_t tree_index) {
  while (tree.send_op != op_tail_) {
    if (live(tree.send_op)) {
      const Operation& current = operation(tree.send_op);
      if (!current.failed && tree.send_index < current.chunks) return true;
    }
    ++tree.send_op;
    tree.send_index = first_index(tree_index, tree.send_op);
  }
  return false;
}

bool Worker::poll_new(Tree& tree, uint32_t tree_index, TimeNs now, Chunk* chunk) {
  if (tree.voiding || (tree.restarting && tree.next != tree.barrier)) return false;
  const Seq ahead = mutated(Mutation::kWindowCounts) ? tree.outstanding : tree.next - tree.base;
  const Seq limit = mutated(Mutation::kBeyondWindow) ? config_.window + 1 : config_.window;
  if (ahead >= limit) return false;
  if (!seek_chunk(tree, tree_index)) return false;
  const bool first = tree.send_index == first_index(tree_index, tree.send_op);
  Entry& e = entry(tree, tree.next);
  e = Entry{.sent_at = now, .index = tree.send_index, .op = tree.send_op, .state = kSent, .first = first};
  if (tree.outstanding++ == 0) tree.timer = kNever;
  make_due(tree, e, now + tree.rtt.rto_ns(0));
  if (!first && tree.confirm == tree.next) ++tree.confirm;
  *chunk = {.tree = tree_index, .seq = tree.next, .op = e.op, .index = e.index};
  ++tree.next;
  tree.send_index += config_.trees;
  return true;
}

}  // namespace gatun
