#include "experiments/net/trees.h"

#include <algorithm>
#include <string>

#include "tests/sim/rng.h"

namespace gatun::net {
namespace {

constexpr uint32_t kStatusWireBytes = 128;  // a header and a few ranks

}  // namespace

struct Trees::Draft {
  uint32_t device = kNone, port_up = kNone, parent = kNone;
  uint8_t child_at_parent = 0;
  std::vector<Child> children;
};

std::vector<uint32_t> Trees::roots(const Topology& topology, std::span<const uint32_t> hosts) {
  std::vector<uint32_t> best;
  uint32_t best_hops = kNone;
  for (uint32_t device = topology.hosts(); device < topology.devices(); ++device) {
    uint32_t hops = 0;
    for (const uint32_t host : hosts) hops = std::max(hops, topology.hops(topology.leaf(host), device));
    if (hops > best_hops) continue;
    if (hops < best_hops) best.clear();
    best_hops = hops;
    best.push_back(device);
  }
  return best;
}

uint32_t Trees::draft_at(uint32_t device, std::vector<Draft>* drafts) {
  const auto found = std::find_if(drafts->begin(), drafts->end(), [&](const Draft& d) { return d.device == device; });
  if (found != drafts->end()) return static_cast<uint32_t>(found - drafts->begin());
  drafts->push_back({.device = device});
  return static_cast<uint32_t>(drafts->size() - 1);
}

Status Trees::add(uint32_t job, uint8_t tree, uint32_t root, uint32_t window, std::span<const uint32_t> hosts,
                  uint32_t first_rank, std::vector<Seat>* seats) {
  const Topology& topology = network_.topology();
  const auto base = static_cast<uint32_t>(nodes_.size());
  std::vector<Draft> drafts;
  for (uint32_t rank = 0; rank < hosts.size(); ++rank) {
    uint32_t at = draft_at(topology.leaf(hosts[rank]), &drafts);
    seats->push_back({.node = base + at, .child = static_cast<uint8_t>(drafts[at].children.size())});
    drafts[at].children.push_back({.port = topology.host_port(hosts[rank]), .target = first_rank + rank});
    while (drafts[at].device != root && drafts[at].port_up == kNone) {
      const uint32_t device = drafts[at].device;
      const auto hash = static_cast<uint32_t>(sim::mix(uint64_t{job} << 8 | tree));
      const uint32_t port = Topology::pick(topology.nearer(device, root), device, hash);
      const uint32_t parent = draft_at(topology.to(port), &drafts);
      drafts[at].port_up = port;
      drafts[at].parent = parent;
      drafts[at].child_at_parent = static_cast<uint8_t>(drafts[parent].children.size());
      drafts[parent].children.push_back({.port = port ^ 1, .target = base + at});
      at = parent;
    }
  }
  for (const Draft& draft : drafts) {
    if (draft.children.size() > kChildrenMax) {
      return {Code::kInvalidArgument, "a switch would have " + std::to_string(draft.children.size()) +
                                          " children in a job's tree, and takes " + std::to_string(kChildrenMax) +
                                          ": spread the ranks over more leaves, or make the leaves smaller"};
    }
  }
  for (Draft& draft : drafts) {
    const auto children = static_cast<uint32_t>(draft.children.size());
    const bool is_root = draft.parent == kNone;
    nodes_.push_back({.machine = Aggregator({.window = window, .children = children, .root = is_root}),
                      .job = job,
                      .tree = tree,
                      .child_at_parent = draft.child_at_parent,
                      .parent = is_root ? kNone : base + draft.parent,
                      .port_up = draft.port_up,
                      .children = std::move(draft.children)});
  }
  return {};
}

void Trees::on_packet(uint32_t index) {
  const Packet& packet = network_.packet(index);
  Node& node = nodes_[packet.target];
  const Header header = packet.header;
  const bool congested = packet.congested;
  const uint32_t wire_bytes = packet.wire_bytes;
  network_.free(index);
  switch (header.type) {
    case PacketType::kData: on_data(node, header, congested, wire_bytes); break;
    case PacketType::kResult: {
      const Aggregator::Decision decision = node.machine.on_result(header, congested);
      if (decision.action == Aggregator::Action::kDeliver) {
        answer_all(node, decision.bank, wire_bytes);
      } else {
        ++stats_.drops;
      }
      break;
    }
    case PacketType::kStatus: on_status(node, header, wire_bytes); break;
    case PacketType::kProbe:
    case PacketType::kProbeReply: break;  // nobody sends them here
  }
}

void Trees::on_data(Node& node, const Header& header, bool congested, uint32_t wire_bytes) {
  const Aggregator::Decision decision = node.machine.on_contribution(header, congested);
  switch (decision.action) {
    case Aggregator::Action::kKeep: break;
    case Aggregator::Action::kComplete:
      if (node.machine.root()) {
        ++stats_.chunks;
        stats_.marked += node.machine.bank(decision.bank).congested;
        answer_all(node, decision.bank, wire_bytes);
      } else {
        send_up(node, decision.bank, false, wire_bytes);
      }
      break;
    case Aggregator::Action::kRepeat:
      ++stats_.repeats;
      answer_one(node, decision.bank, header.child, wire_bytes);
      break;
    case Aggregator::Action::kRepeatUp:
      ++stats_.repeats;
      send_up(node, decision.bank, true, wire_bytes);
      break;
    case Aggregator::Action::kStatus: {
      ++stats_.statuses;
      Header status = node.machine.make_header(decision.bank);
      status.type = PacketType::kStatus;
      status.flags = 0;
      status.job = node.job;
      status.tree = node.tree;
      const Child& child = node.children[header.child];
      send(child.port, child.target, status, kStatusWireBytes);
      break;
    }
    case Aggregator::Action::kDrop: ++stats_.drops; break;
    case Aggregator::Action::kRefuse:
    case Aggregator::Action::kDeliver: GATUN_CHECK(false);  // all ranks agree here, and this is no answer
  }
}

// The parent waits for others: our children that have contributed hear it.
void Trees::on_status(Node& node, const Header& header, uint32_t wire_bytes) {
  const uint32_t bank = header.seq & (node.machine.banks() - 1);
  if (node.machine.bank(bank).seq != header.seq || node.machine.bank(bank).state != Aggregator::kCompleted) return;
  for (const Child& child : node.children) send(child.port, child.target, header, wire_bytes);
}

void Trees::send(uint32_t port, uint32_t target, const Header& header, uint32_t wire_bytes) {
  const uint32_t made = network_.make();
  Packet& packet = network_.packet(made);
  packet.kind = PacketKind::kTree;
  packet.target = target;
  packet.wire_bytes = wire_bytes;
  packet.header = header;
  network_.send(port, made);
}

void Trees::answer_all(Node& node, uint32_t bank, uint32_t wire_bytes) {
  Header header = node.machine.make_header(bank);
  header.job = node.job;
  header.tree = node.tree;
  for (const Child& child : node.children) send(child.port, child.target, header, wire_bytes);
}

void Trees::answer_one(Node& node, uint32_t bank, uint8_t child, uint32_t wire_bytes) {
  Header header = node.machine.make_header(bank);
  header.job = node.job;
  header.tree = node.tree;
  send(node.children[child].port, node.children[child].target, header, wire_bytes);
}

void Trees::send_up(Node& node, uint32_t bank, bool repeat, uint32_t wire_bytes) {
  Header header = node.machine.make_header(bank);
  header.job = node.job;
  header.tree = node.tree;
  header.child = node.child_at_parent;
  header.flags |= kFlagPartial;
  if (repeat) header.flags |= kFlagRepeat;
  send(node.port_up, node.parent, header, wire_bytes);
}

uint32_t Trees::open_banks() const {
  uint32_t open = 0;
  for (const Node& node : nodes_) open += node.machine.open_banks();
  return open;
}

}  // namespace gatun::net
