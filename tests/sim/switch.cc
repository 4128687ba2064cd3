#include "tests/sim/switch.h"

#include <algorithm>
#include <cstring>

#include "protocols/big_endian.h"

namespace gatun::sim {
namespace {

constexpr uint32_t kTreesMax = 96;
constexpr size_t kBurst = 32;

}  // namespace

Switch::Switch(World& world, Network& network, uint32_t id)
    : world_(world), network_(network), id_(id), node_(kTreesMax), known_(kEndpoints) {}

void Switch::admit(const JobPlan& job, uint8_t tree_index, const SwitchPlan& plan) {
  auto admitted = std::make_unique<Admitted>();
  TreeSpec spec{.job = job.handle,
                .token = job.token + tree_index,
                .tree = tree_index,
                .window = job.window,
                .payload_bytes = job.payload_bytes,
                .child_ranks = plan.child_ranks,
                .root = plan.parent < 0,
                .child_at_parent = static_cast<uint8_t>(plan.child_at_parent)};
  if (!spec.root) {
    admitted->parent = static_cast<int>(job.tree_plans[tree_index].switches[static_cast<size_t>(plan.parent)].id);
    spec.parent = peer_of(static_cast<uint32_t>(admitted->parent));
    spec.parent_checksum = !world_.plan.switches_share;
    known_[static_cast<size_t>(admitted->parent)] = true;
  }
  admitted->job = job.handle;
  admitted->tree = tree_index;
  admitted->window = job.window;
  admitted->child_at_parent = spec.child_at_parent;
  admitted->token = spec.token;
  admitted->payload_bytes = job.payload_bytes;
  admitted->banks_times_children = 2 * job.window * static_cast<uint32_t>(plan.children.size());
  admitted->arena.assign(spec.arena_bytes(), std::byte{0xaa});
  admitted->sent_up.assign(size_t{2} * job.window, -1);
  admitted->proven = spec.root;
  const Status status = node_.admit(spec, admitted->arena);
  if (!status.ok()) world_.fail("admission", "switch %u: %s", id_, status.message());
  held_max_ += admitted->banks_times_children;
  admitted_.push_back(std::move(admitted));
}

void Switch::remove(uint32_t job, uint8_t tree) {
  const auto it =
      std::find_if(admitted_.begin(), admitted_.end(), [&](const auto& a) { return a->job == job && a->tree == tree; });
  if (it == admitted_.end()) return;
  bool more = true;
  while (more) {
    more = node_.remove(job, tree, &outbox_);
    world_.marks.hit(Mark::kFreedByRemoval, outbox_.releases().size());
    flush();
  }
  held_max_ -= (*it)->banks_times_children;
  // Ranks that have not given it up yet may still read answers there.
  if (!world_.plan.failover.on) std::fill((*it)->arena.begin(), (*it)->arena.end(), std::byte{0xbb});
  removed_.push_back(std::move(*it));
  admitted_.erase(it);
  if (held_ > held_max_)
    world_.fail("memory", "switch %u holds %u buffers after a removal, at most %u", id_, held_, held_max_);
}

bool Switch::proven(uint32_t job, uint8_t tree) const {
  return std::any_of(admitted_.begin(), admitted_.end(),
                     [&](const auto& a) { return a->job == job && a->tree == tree && a->proven; });
}

void Switch::send_probes() {
  for (const auto& a : admitted_) {
    if (a->proven) continue;
    std::byte payload[kPayloadMax] = {};
    put64(&payload[0], a->token);
    TxPacket tx{.payload = payload, .payload_bytes = a->payload_bytes};
    const Header header{.type = PacketType::kProbe, .tree = a->tree, .child = a->child_at_parent, .job = a->job};
    encode(header, payload, tx.payload_bytes, true, tx.head);
    network_.send(id_, static_cast<uint32_t>(a->parent), tx);
  }
}

void Switch::crash(TimeNs up_at) {
  up_at_ = up_at;
  crash_due_ = false;
  for (const uint32_t packet : inbox_) network_.free(packet);
  inbox_.clear();
  outbox_.clear();
  while (!admitted_.empty() && !world_.failed()) remove(admitted_.front()->job, admitted_.front()->tree);
  known_.assign(kEndpoints, false);
}

void Switch::crash_at(TimeNs time) {
  crash_at_ = time;
  world_.queue.push(time, EventKind::kSwitch, id_);
}

void Switch::on_delivery(uint32_t packet) {
  if (world_.now < up_at_) return network_.free(packet);
  inbox_.push_back(packet);
  if (next_run_ != kNever) return;
  next_run_ = world_.plan.runs_at(id_, world_.now + world_.plan.switch_burst);
  world_.queue.push(next_run_, EventKind::kSwitch, id_);
}

void Switch::on_run() {
  next_run_ = kNever;
  size_t burst = std::min(inbox_.size(), kBurst);
  if (crash_after_ > 0 && crash_after_ <= burst) {
    burst = crash_after_;
    crash_due_ = true;
  }
  if (crash_after_ > 0) crash_after_ -= burst;
  if (world_.now >= crash_at_) {
    crash_due_ = true;
    crash_at_ = kNever;
  }
  for (size_t i = 0; i < burst && !world_.failed(); ++i) handle(inbox_[i]);
  inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<ptrdiff_t>(burst));
  // A crash may leave some children with the answer and others without.
  flush(crash_due_ ? Stream(world_.plan.seed, Draw::kCrash, id_, outbox_.sends().size()).below(kBurst) : SIZE_MAX);
  if (held_ > held_max_) world_.fail("memory", "switch %u holds %u buffers, at most %u", id_, held_, held_max_);
  if (crash_due_) return;
  if (inbox_.empty()) return;
  next_run_ = world_.now;
  world_.queue.push(next_run_, EventKind::kSwitch, id_);
}

void Switch::handle(uint32_t index) {
  Packet& packet = network_.packet(index);
  if (take_probe_reply(packet)) return network_.free(index);
  if (outbox_.full()) flush();
  RxPacket rx{.head = packet.head.data(),
              .payload = packet.payload,
              .payload_bytes = packet.payload_bytes,
              .peer = known_[packet.from] ? peer_of(packet.from) : kNoPeer,
              .buffer = packet.by_reference ? kNoBuffer : index,
              .congested = packet.congested,
              .checksummed = packet.checksummed};
  if (rx.peer == kNoPeer && node_.accepts_probe(rx)) {
    known_[packet.from] = true;
    rx.peer = peer_of(packet.from);
  }
  const NodeStats before = node_.stats();
  ++held_;
  const bool by_reference = packet.by_reference;
  node_.on_packet(rx, world_.now, &outbox_);
  if (by_reference) {
    world_.marks.hit(Mark::kShared);
    --held_;
    network_.free(index);
  }
  count(before, node_.stats());
}

void Switch::flush(size_t sends_max) {
  for (const TxPacket& tx : outbox_.sends().first(std::min(sends_max, outbox_.sends().size()))) {
    if (tx.peer == kNoPeer) {
      world_.fail("addresses", "switch %u sends to nobody", id_);
      break;
    }
    note_sent_up(tx);
    network_.send(id_, endpoint_of(tx.peer), tx);
  }
  for (const BufferId buffer : outbox_.releases()) {
    if (buffer == kNoBuffer || held_ == 0) {
      world_.fail("buffers", "switch %u gives back what it does not hold", id_);
      break;
    }
    --held_;
    network_.free(buffer);
  }
  outbox_.clear();
}

void Switch::note_sent_up(const TxPacket& tx) {
  Header header;
  if (decode(tx.head, tx.payload, tx.payload_bytes, false, &header) != Decode::kOk) {
    world_.fail("wire", "switch %u sends a packet that cannot be read", id_);
    return;
  }
  if (header.type != PacketType::kData) return;
  for (const auto& a : admitted_) {
    if (a->job != header.job || a->tree != header.tree) continue;
    int64_t& last = a->sent_up[header.seq & (2 * a->window - 1)];
    if (last == header.seq) world_.marks.hit(Mark::kRepeatUp);
    last = header.seq;
  }
}

bool Switch::take_probe_reply(const Packet& packet) {
  Header header;
  if (decode(packet.head.data(), packet.payload, packet.payload_bytes, packet.checksummed, &header) != Decode::kOk ||
      header.type != PacketType::kProbeReply) {
    return false;
  }
  for (const auto& a : admitted_) {
    if (a->job == header.job && a->tree == header.tree && a->parent == static_cast<int>(packet.from)) a->proven = true;
  }
  return true;
}

void Switch::count(const NodeStats& before, const NodeStats& after) {
  Marks& marks = world_.marks;
  marks.hit(Mark::kRepeatDown, after.repeats - before.repeats);
  marks.hit(Mark::kStatusDown, after.statuses - before.statuses);
  marks.hit(Mark::kRefused, after.refusals - before.refusals);
  marks.hit(Mark::kDropStale, after.dropped_stale - before.dropped_stale);
  marks.hit(Mark::kDropForeign, after.dropped_foreign - before.dropped_foreign);
  marks.hit(Mark::kDropChecksum, after.dropped_checksum - before.dropped_checksum);
  marks.hit(Mark::kDropMalformed, after.dropped_malformed - before.dropped_malformed);
  marks.hit(Mark::kDropUnexpected, after.dropped_unexpected - before.dropped_unexpected);
}

}  // namespace gatun::sim
