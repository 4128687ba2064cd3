#include "switch_model/node.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "protocols/big_endian.h"
#include "protocols/mutation.h"
#include "protocols/seq.h"
#include "switch_model/kernels.h"

namespace gatun {
namespace {

template <typename F>
void for_each_bit(uint64_t bits, F f) {
  for (; bits != 0; bits &= bits - 1) f(static_cast<uint32_t>(std::countr_zero(bits)));
}

}  // namespace

struct Node::Tree {
  struct Child {
    PeerId peer = kNoPeer;
    bool checksum = true;
  };
  struct Held {  // a child's contribution, where the transport put it
    const std::byte* payload = nullptr;
    BufferId buffer = kNoBuffer;
  };
  Tree(const TreeSpec& s, std::span<std::byte> memory)
      : spec(s),
        arena(memory),
        machine({.window = s.window, .children = static_cast<uint32_t>(s.child_ranks.size()), .root = s.root}),
        children(s.child_ranks.size()),
        held(size_t{machine.banks()} * s.child_ranks.size()),
        root_us(machine.banks()),
        opened(machine.banks()) {}

  std::byte* place(uint32_t bank) {
    if (mutated(Mutation::kSharedPlace)) bank &= ~1u;
    return arena.data() + size_t{bank} * spec.payload_bytes;
  }
  bool owns(const std::byte* token) const { return take64(token) == spec.token || mutated(Mutation::kAnyToken); }
  Held& held_at(uint32_t bank, uint32_t child) { return held[size_t{bank} * children.size() + child]; }

  TreeSpec spec;
  std::span<std::byte> arena;
  Aggregator machine;
  std::vector<Child> children;
  std::vector<Held> held;
  std::vector<uint32_t> root_us;  // per bank, as the answer carries it
  std::vector<TimeNs> opened;     // per bank: when the first contribution came
  TreeStats stats;
  uint32_t remove_next = 0;       // banks whose buffers remove() has given back
};

TreeStats& TreeStats::operator+=(const TreeStats& other) {
  operations = std::max(operations, other.operations);
  contributions += other.contributions;
  repeats += other.repeats;
  statuses += other.statuses;
  refusals += other.refusals;
  chunks += other.chunks;
  marked += other.marked;
  reduced_chunks += other.reduced_chunks;
  reduced_bytes += other.reduced_bytes;
  reduce_ns += other.reduce_ns;
  return *this;
}

Node::Node(uint32_t trees_max, TimeNs (*clock)())
    : table_(std::bit_ceil(size_t{2} * trees_max + 2)), trees_max_(trees_max), clock_(clock) {}
Node::~Node() = default;

// Linear probing; the job's handle is random in its upper bits.
size_t Node::slot_of(uint32_t job, uint8_t tree) const {
  const uint32_t compared = mutated(Mutation::kOldHandle) ? 0x3ff : ~0u;
  size_t slot = (size_t{job & compared} * 0x9e3779b1u + tree) & (table_.size() - 1);
  while (table_[slot] && ((table_[slot]->spec.job ^ job) & compared || table_[slot]->spec.tree != tree)) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  return slot;
}

Node::Tree* Node::find(uint32_t job, uint8_t tree) const { return table_[slot_of(job, tree)].get(); }

Status Node::admit(const TreeSpec& spec, std::span<std::byte> arena) {
  if (tree_count_ == trees_max_) {
    return {Code::kRefused, "the switch already serves its maximum of " + std::to_string(trees_max_) + " trees"};
  }
  const size_t children = spec.child_ranks.size();
  if (children < 1 || children > kChildrenMax) {
    return {Code::kRefused,
            "a switch takes 1 to " + std::to_string(kChildrenMax) + " children, not " + std::to_string(children)};
  }
  if (!std::has_single_bit(spec.window) || spec.window > kWindowMax) {
    return {Code::kInvalidArgument, "window must be a power of two up to " + std::to_string(kWindowMax) + ", not " +
                                        std::to_string(spec.window)};
  }
  if (arena.size() < spec.arena_bytes() || spec.payload_bytes < 8) {
    return {Code::kInvalidArgument, "arena of " + std::to_string(arena.size()) + " bytes is smaller than the tree's " +
                                        std::to_string(spec.arena_bytes())};
  }
  std::unique_ptr<Tree>& slot = table_[slot_of(spec.job, spec.tree)];
  if (slot) return {Code::kInvalidArgument, "the tree is already here"};
  slot = std::make_unique<Tree>(spec, arena);
  ++tree_count_;
  return {};
}

bool Node::remove(uint32_t job, uint8_t tree_index, Outbox* out) {
  size_t slot = slot_of(job, tree_index);
  if (!table_[slot]) return false;
  Tree& tree = *table_[slot];
  for (; tree.remove_next < tree.machine.banks(); ++tree.remove_next) {
    if (out->full()) return true;
    if (!mutated(Mutation::kRemoveKeeps)) release(tree, tree.remove_next, tree.machine.held(tree.remove_next), out);
  }
  table_[slot].reset();
  --tree_count_;
  // Close the gap: what was probed past this slot moves up.
  for (size_t next = (slot + 1) & (table_.size() - 1); table_[next]; next = (next + 1) & (table_.size() - 1)) {
    std::unique_ptr<Tree> moved = std::move(table_[next]);
    const size_t home = slot_of(moved->spec.job, moved->spec.tree);
    table_[home] = std::move(moved);
  }
  return false;
}

bool Node::accepts_probe(const RxPacket& packet) const {
  Header header;
  if (decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header) != Decode::kOk) return false;
  if (header.type != PacketType::kProbe) return false;
  const Tree* tree = find(header.job, header.tree);
  return tree && header.child < tree->children.size() && tree->owns(packet.payload);
}

void Node::on_packet(const RxPacket& packet, TimeNs now, Outbox* out) {
  Header header;
  const Decode decoded = decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header);
  Tree* tree = decoded == Decode::kOk ? find(header.job, header.tree) : nullptr;
  bool kept = false;
  if (decoded == Decode::kChecksum) {
    ++stats_.dropped_checksum;
  } else if (decoded != Decode::kOk) {
    ++stats_.dropped_malformed;
  } else if (!tree) {
    ++stats_.dropped_foreign;
  } else {
    switch (header.type) {
      case PacketType::kData: kept = on_data(*tree, header, packet, now, out); break;
      case PacketType::kResult: kept = on_answer(*tree, header, packet, out); break;
      case PacketType::kStatus: on_status(*tree, header, packet, out); break;
      case PacketType::kProbe: on_probe(*tree, header, packet, out); break;
      case PacketType::kProbeReply: ++stats_.dropped_unexpected; break;
    }
  }
  if (!kept) out->release(packet.buffer);
}

bool Node::on_data(Tree& tree, const Header& header, const RxPacket& packet, TimeNs now, Outbox* out) {
  ++stats_.data;
  if (header.child >= tree.children.size() || packet.peer == kNoPeer ||
      (tree.children[header.child].peer != packet.peer && !mutated(Mutation::kAnyPeer))) {
    ++stats_.dropped_foreign;
    return false;
  }
  const Type out_type = tree.spec.root ? header.elem_type : partial_type(header.elem_type);
  if (uint64_t{header.elems} * elem_bytes(out_type) > tree.spec.payload_bytes) {
    ++stats_.dropped_malformed;
    return false;
  }
  const Aggregator::Decision decision = tree.machine.on_contribution(header, packet.congested);
  const uint32_t bank = decision.bank;
  ++tree.stats.contributions;
  release(tree, bank, decision.released, out);
  bool kept = false;
  switch (decision.action) {
    case Aggregator::Action::kDrop:
      ++(decision.drop == Aggregator::Drop::kStale ? stats_.dropped_stale : stats_.dropped_unexpected);
      break;
    case Aggregator::Action::kKeep:
    case Aggregator::Action::kComplete: {
      kept = tree.machine.bank(bank).with_payload >> header.child & 1;
      if (kept) tree.held_at(bank, header.child) = {packet.payload, packet.buffer};
      if (std::has_single_bit(tree.machine.bank(bank).arrived)) open(tree, header, bank, now);
      if (mutated(Mutation::kReleasedEarly)) kept = false;
      if (decision.action == Aggregator::Action::kComplete) complete(tree, bank, now, out);
      break;
    }
    case Aggregator::Action::kRefuse: {
      ++stats_.refusals;
      ++tree.stats.refusals;
      const uint64_t self = uint64_t{1} << header.child;
      if (!mutated(Mutation::kNotReleased)) release(tree, bank, tree.machine.bank(bank).with_payload & ~self, out);
      tree.root_us[bank] = static_cast<uint32_t>(now / kUs);
      if (tree.spec.root) {
        answer_all(tree, bank, out);
        drain_void(tree, out);
      } else {
        send_up(tree, bank, false, out);
      }
      break;
    }
    case Aggregator::Action::kRepeat:
      ++stats_.repeats;
      ++tree.stats.repeats;
      if (mutated(Mutation::kStampOfRepeat)) tree.root_us[bank] = static_cast<uint32_t>(now / kUs);
      answer_one(tree, bank, header.child, out);
      break;
    case Aggregator::Action::kRepeatUp:
      ++stats_.repeats;
      ++tree.stats.repeats;
      send_up(tree, bank, true, out);
      break;
    case Aggregator::Action::kStatus: send_status(tree, bank, header.child, out); break;
    case Aggregator::Action::kDeliver: break;
  }
  return kept;
}

// Operations are numbered by 32 bits, of which the header has 16.
void Node::open(Tree& tree, const Header& header, uint32_t bank, TimeNs now) {
  tree.opened[bank] = now;
  const uint64_t latest = tree.stats.operations == 0 ? 0 : tree.stats.operations - 1;
  const int16_t ahead = serial_distance16(header.op, static_cast<uint16_t>(latest));
  if (ahead >= 0) tree.stats.operations = latest + static_cast<uint64_t>(ahead) + 1;
}

// All contributions are here: one pass over them into the arena, then the answer (or the partial result) goes out.
void Node::complete(Tree& tree, uint32_t index, TimeNs now, Outbox* out) {
  const Aggregator::Bank& bank = tree.machine.bank(index);
  ++tree.stats.chunks;
  tree.stats.marked += bank.congested;
  if (bank.with_payload != 0) {
    const TimeNs begin = clock_ ? clock_() : 0;
    const void* inputs[kChildrenMax];
    uint64_t partial = 0;
    int count = 0;
    for_each_bit(bank.with_payload, [&](uint32_t child) {
      if (bank.partial >> child & 1) partial |= uint64_t{1} << count;
      inputs[count++] = tree.held_at(index, child).payload;
    });
    if (mutated(Mutation::kOrderOfBuffers) && partial == 0) std::sort(inputs, inputs + count);
    const Type out_type = tree.spec.root ? bank.elem_type : partial_type(bank.elem_type);
    reduce({.type = bank.elem_type,
            .op = bank.reduce_op,
            .inputs = count,
            .in = inputs,
            .partial = partial,
            .out = tree.place(index),
            .out_partial = !tree.spec.root,
            .divisor = mutated(Mutation::kDivisorOfChildren) ? tree.machine.children() : std::max(1u, bank.contributors),
            .elems = bank.elems});
    const uint64_t bytes = uint64_t{bank.elems} * elem_bytes(out_type);
    ++stats_.reduced_chunks;
    stats_.reduced_bytes += bytes;
    ++tree.stats.reduced_chunks;
    tree.stats.reduced_bytes += bytes;
    if (clock_) tree.stats.reduce_ns += static_cast<uint64_t>(clock_() - begin);
    release(tree, index, bank.with_payload, out);
  }
  tree.root_us[index] = static_cast<uint32_t>(now / kUs);
  if (tree.spec.root) {
    answer_all(tree, index, out);
  } else {
    send_up(tree, index, false, out);
  }
}

bool Node::on_answer(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out) {
  ++stats_.results;
  const bool stranger = packet.peer != tree.spec.parent && !mutated(Mutation::kAnyParent);
  if (tree.spec.root || packet.peer == kNoPeer || stranger || packet.payload_bytes > tree.spec.payload_bytes) {
    ++stats_.dropped_foreign;
    return false;
  }
  const Aggregator::Decision decision = tree.machine.on_result(header, packet.congested);
  if (decision.action != Aggregator::Action::kDeliver) {
    ++(decision.drop == Aggregator::Drop::kStale ? stats_.dropped_stale : stats_.dropped_unexpected);
    return false;
  }
  if (packet.payload_bytes > 0) std::memcpy(tree.place(decision.bank), packet.payload, packet.payload_bytes);
  tree.root_us[decision.bank] = header.root_us;
  answer_all(tree, decision.bank, out);
  drain_void(tree, out);
  return false;
}

// The parent waits for others: our children that have contributed hear whom.
void Node::on_status(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out) {
  if (tree.spec.root || packet.peer != tree.spec.parent || packet.payload_bytes > 2 + 2 * kStatusRanksMax) {
    ++stats_.dropped_foreign;
    return;
  }
  const uint32_t index = header.seq & (tree.machine.banks() - 1);
  const Aggregator::Bank& bank = tree.machine.bank(index);
  if (bank.seq != header.seq || bank.state != Aggregator::kCompleted) {
    ++stats_.dropped_stale;
    return;
  }
  for (const Tree::Child& child : tree.children) {
    if (child.peer == kNoPeer) continue;
    ++stats_.statuses;
    TxPacket& packet_out = out->sends_[static_cast<size_t>(out->send_count_++)];
    packet_out = {.payload = packet.payload, .payload_bytes = packet.payload_bytes, .peer = child.peer};
    Header forwarded = header;
    forwarded.child = 0;
    encode(forwarded, packet.payload, packet.payload_bytes, child.checksum, packet_out.head);
  }
}

void Node::on_probe(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out) {
  if (header.child >= tree.children.size() || packet.peer == kNoPeer || !tree.owns(packet.payload)) {
    ++stats_.dropped_foreign;
    return;
  }
  ++stats_.probes;
  tree.children[header.child] = {.peer = packet.peer, .checksum = packet.checksummed};
  TxPacket& reply = out->sends_[static_cast<size_t>(out->send_count_++)];
  reply = {.payload = packet.payload, .payload_bytes = packet.payload_bytes, .peer = packet.peer};
  Header answer = header;
  answer.type = PacketType::kProbeReply;
  encode(answer, packet.payload, packet.payload_bytes, packet.checksummed, reply.head);
}

void Node::answer_all(Tree& tree, uint32_t bank, Outbox* out) {
  TxPacket first{.peer = kNoPeer};
  bool encoded = false, checksummed = false;
  for (uint32_t i = 0; i < tree.children.size(); ++i) {
    const Tree::Child& child = tree.children[i];
    if (child.peer == kNoPeer) continue;
    if (!encoded || (child.checksum && !checksummed)) {
      answer_one(tree, bank, static_cast<uint8_t>(i), out);
      first = out->sends_[static_cast<size_t>(out->send_count_ - 1)];
      encoded = true;
      checksummed = child.checksum;
      continue;
    }
    TxPacket& packet = out->sends_[static_cast<size_t>(out->send_count_++)];
    packet = first;
    packet.peer = child.peer;
    ++stats_.sent_results;
  }
}

void Node::answer_one(Tree& tree, uint32_t index, uint8_t child, Outbox* out) {
  Header header = tree.machine.make_header(index);
  header.type = PacketType::kResult;
  header.tree = tree.spec.tree;
  header.job = tree.spec.job;
  header.root_us = tree.root_us[index];
  ++stats_.sent_results;
  TxPacket& packet = out->sends_[static_cast<size_t>(out->send_count_++)];
  packet = {.peer = tree.children[child].peer};
  if (!(header.flags & (kFlagEmpty | kFlagRefused))) {
    packet.payload = tree.place(index);
    packet.payload_bytes = header.elems * static_cast<uint32_t>(elem_bytes(header.elem_type));
  }
  encode(header, packet.payload, packet.payload_bytes, tree.children[child].checksum, packet.head);
}

void Node::send_up(Tree& tree, uint32_t index, bool repeat, Outbox* out) {
  if (tree.spec.parent == kNoPeer) return;
  Header header = tree.machine.make_header(index);
  header.type = PacketType::kData;
  header.tree = tree.spec.tree;
  header.job = tree.spec.job;
  header.child = tree.spec.child_at_parent;
  if (repeat) header.flags |= kFlagRepeat;
  ++stats_.sent_partials;
  TxPacket& packet = out->sends_[static_cast<size_t>(out->send_count_++)];
  packet = {.peer = tree.spec.parent};
  if (!(header.flags & (kFlagEmpty | kFlagRefused))) {
    header.flags |= kFlagPartial;
    packet.payload = tree.place(index);
    packet.payload_bytes = header.elems * static_cast<uint32_t>(elem_bytes(partial_type(header.elem_type)));
  }
  encode(header, packet.payload, packet.payload_bytes, tree.spec.parent_checksum, packet.head);
}

void Node::send_status(Tree& tree, uint32_t index, uint8_t child, Outbox* out) {
  ++stats_.statuses;
  ++tree.stats.statuses;
  std::byte* payload = out->statuses_[static_cast<size_t>(out->status_count_++)].data();
  uint16_t ranks = 0;
  uint64_t absent = tree.machine.missing(index);
  if (mutated(Mutation::kStatusNamesArrived)) absent = ~absent & ((uint64_t{2} << (tree.children.size() - 1)) - 1);
  for_each_bit(absent, [&](uint32_t missing) {
    for (const uint16_t rank : tree.spec.child_ranks[missing]) {
      if (ranks < kStatusRanksMax) put16(payload + 2 + 2 * ranks++, rank);
    }
  });
  put16(payload, ranks);
  Header header = tree.machine.make_header(index);
  header.type = PacketType::kStatus;
  header.flags = 0;
  header.tree = tree.spec.tree;
  header.job = tree.spec.job;
  TxPacket& packet = out->sends_[static_cast<size_t>(out->send_count_++)];
  packet = {.payload = payload, .payload_bytes = 2u + 2u * ranks, .peer = tree.children[child].peer};
  encode(header, payload, packet.payload_bytes, tree.children[child].checksum, packet.head);
}

void Node::release(Tree& tree, uint32_t bank, uint64_t children, Outbox* out) {
  for_each_bit(children, [&](uint32_t child) {
    out->release(std::exchange(tree.held_at(bank, child), Tree::Held{}).buffer);
  });
}

// Gives back what the void chunks behind a refused one held; what does not fit goes when its bank is taken again.
void Node::drain_void(Tree& tree, Outbox* out) {
  uint32_t bank;
  uint64_t released;
  while (!out->full() && tree.machine.poll_void(&bank, &released)) release(tree, bank, released, out);
}

uint32_t Node::open_banks(uint32_t job, uint8_t tree_index) const {
  const Tree* tree = find(job, tree_index);
  return tree ? tree->machine.open_banks() : 0;
}

uint32_t Node::view(size_t place, TreeView* view) const {
  const Tree* tree = table_[place].get();
  if (!tree) return 0;
  const Aggregator& machine = tree->machine;
  *view = {.job = tree->spec.job, .tree = tree->spec.tree, .stats = tree->stats, .banks = machine.banks()};
  uint32_t oldest = machine.banks();  // none
  for (uint32_t i = 0; i < machine.banks(); ++i) {
    const Aggregator::Bank& bank = machine.bank(i);
    view->open += bank.state == Aggregator::kFilling || bank.state == Aggregator::kCompleted;
    if (bank.state != Aggregator::kFilling) continue;
    if (oldest == machine.banks() || serial_distance(bank.seq, machine.bank(oldest).seq) < 0) oldest = i;
  }
  if (oldest != machine.banks()) {
    const uint64_t latest = tree->stats.operations == 0 ? 0 : tree->stats.operations - 1;
    const int64_t ahead = serial_distance16(machine.bank(oldest).op, static_cast<uint16_t>(latest));
    view->waiting_since = tree->opened[oldest];
    view->missing = machine.missing(oldest);
    view->operation = latest + static_cast<uint64_t>(ahead);
  }
  return machine.banks();
}

PeerId Node::child_peer(uint32_t job, uint8_t tree_index, uint8_t child) const {
  const Tree* tree = find(job, tree_index);
  return tree && child < tree->children.size() ? tree->children[child].peer : kNoPeer;
}

}  // namespace gatun
