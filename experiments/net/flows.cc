#include "experiments/net/flows.h"

#include <algorithm>

#include "protocols/seq.h"
#include "tests/sim/rng.h"

namespace gatun::net {
namespace {

constexpr uint32_t kWindowLimit = 4096;     // packets: above what any path here holds
constexpr uint32_t kRepeatedAcks = 3;       // that mean a loss
constexpr uint32_t kTimeoutFactorMax = 50;  // longest timeout over the shortest

}  // namespace

Flows::Flows(Network& network, const Config& config)
    : network_(network), config_(config), payload_bytes_(config.mtu - kTcpBytes) {}

uint32_t Flows::place(uint32_t from, uint32_t to) {
  uint32_t index = static_cast<uint32_t>(flows_.size());
  const RttEstimator rtt(config_.rto_min, config_.rto_min, config_.rto_min * kTimeoutFactorMax);
  Flow flow{.window = {config_.window_initial, kWindowLimit}, .rtt = rtt};
  if (unused_.empty()) {
    flows_.push_back(std::move(flow));
  } else {
    index = unused_.back();
    unused_.pop_back();
    flow.timer = flows_[index].timer;
    flows_[index] = std::move(flow);
  }
  Flow& placed = flows_[index];
  placed.from = from;
  placed.to = to;
  placed.hash = static_cast<uint32_t>(sim::mix(config_.seed ^ sim::mix(opened_++)));
  placed.started = network_.now();
  placed.open = true;
  return index;
}

uint32_t Flows::open(uint32_t from, uint32_t to, uint64_t bytes) {
  const uint32_t index = place(from, to);
  flows_[index].bytes = bytes;
  flows_[index].limit = (bytes + payload_bytes_ - 1) / payload_bytes_;
  ++active_;
  send_more(index);
  return index;
}

uint32_t Flows::connect(uint32_t from, uint32_t to, uint32_t rank) {
  const uint32_t index = place(from, to);
  flows_[index].rank = rank;
  return index;
}

void Flows::allow(uint32_t index, uint64_t packets) {
  flows_[index].limit = packets;
  send_more(index);
}

uint32_t Flows::wire_bytes(const Flow& flow, uint64_t seq) const {
  const bool last = flow.rank == kNone && seq + 1 == flow.limit;
  const uint64_t payload = last ? flow.bytes - seq * payload_bytes_ : payload_bytes_;
  return std::max(static_cast<uint32_t>(payload) + kTcpBytes + kFrameBytes, kAckWireBytes);
}

void Flows::send_more(uint32_t index) {
  Flow& flow = flows_[index];
  const uint64_t before = flow.next;
  while (flow.next < flow.limit && flow.next - flow.oldest < flow.window.chunks() + flow.repeated_acks) {
    send(index, flow.next++);
  }
  if (flow.next == before) return;
  if (flow.oldest == before) flow.due = network_.now() + flow.rtt.rto_ns(flow.timeouts) * kPsPerNs;
  arm(index);
}

void Flows::send(uint32_t index, uint64_t seq) {
  const Flow& flow = flows_[index];
  const uint32_t made = network_.make();
  Packet& packet = network_.packet(made);
  packet.kind = PacketKind::kSegment;
  packet.markable = config_.ecn;
  packet.target = flow.to;
  packet.wire_bytes = wire_bytes(flow, seq);
  packet.segment = {.sent_at = network_.now(), .flow = index, .seq = static_cast<uint32_t>(seq), .hash = flow.hash};
  network_.send(network_.topology().nic(flow.from), made);
}

void Flows::arm(uint32_t index) {
  Flow& flow = flows_[index];
  if (flow.timer) return;  // which then sees what is due
  flow.timer = true;
  network_.at(flow.due, EventKind::kFlow, index);
}

Flows::News Flows::on_segment(uint32_t index) {
  const Packet& packet = network_.packet(index);
  const Segment& segment = packet.segment;
  Flow& flow = flows_[segment.flow];
  // A repeat may come after the last acknowledgement ended the flow, or even began another in its place.
  if (!flow.open || flow.hash != segment.hash) {
    network_.free(index);
    return {};
  }
  const uint64_t before = flow.received;
  accept(flow, extend_seq(flow.received, segment.seq));
  const bool news = flow.received > before;
  const News result{.flow = segment.flow,
                    .packets = static_cast<uint32_t>(flow.received - before),
                    .complete = news && flow.rank == kNone && flow.received == flow.limit};
  acknowledge(flow, packet);
  network_.free(index);
  return result;
}

void Flows::accept(Flow& flow, uint64_t seq) {
  if (seq < flow.received) return;
  if (seq == flow.received) {
    ++flow.received;
    if (!flow.beyond.empty() && flow.beyond.front().first == flow.received) {
      flow.received = flow.beyond.front().second;
      flow.beyond.erase(flow.beyond.begin());
    }
    return;
  }
  auto at = std::find_if(flow.beyond.begin(), flow.beyond.end(), [&](const auto& range) { return seq <= range.second; });
  if (at == flow.beyond.end() || seq + 1 < at->first) {
    flow.beyond.insert(at, {seq, seq + 1});
  } else if (seq + 1 == at->first) {
    at->first = seq;
  } else if (seq == at->second) {
    ++at->second;
    const auto following = at + 1;
    if (following != flow.beyond.end() && following->first == at->second) {
      at->second = following->second;
      flow.beyond.erase(following);
    }
  }
}

void Flows::acknowledge(const Flow& flow, const Packet& data) {
  const uint32_t made = network_.make();
  Packet& packet = network_.packet(made);
  packet.kind = PacketKind::kAck;
  packet.markable = false;
  packet.target = flow.from;
  packet.wire_bytes = kAckWireBytes;
  packet.segment = data.segment;
  packet.segment.seq = static_cast<uint32_t>(flow.received);
  packet.segment.echo = data.congested;
  network_.send(network_.topology().nic(flow.to), made);
}

void Flows::on_ack(uint32_t packet) {
  const Segment segment = network_.packet(packet).segment;
  network_.free(packet);
  Flow& flow = flows_[segment.flow];
  if (!flow.open || flow.hash != segment.hash) return;
  const uint64_t missing = extend_seq(flow.oldest, segment.seq);
  if (missing > flow.oldest) {
    flow.next = std::max(flow.next, missing);  // after a timeout, what was sent before it still comes
    for (; flow.oldest < missing; ++flow.oldest) flow.window.on_result(flow.oldest, flow.next, segment.echo);
    flow.rtt.on_sample(to_ns(network_.now() - segment.sent_at));
    flow.repeated_acks = flow.timeouts = 0;
    flow.due = network_.now() + flow.rtt.rto_ns(0) * kPsPerNs;
    if (flow.rank == kNone && flow.oldest == flow.limit) {
      flow.open = false;
      --active_;
      unused_.push_back(segment.flow);
      return;
    }
    if (flow.oldest < flow.recover) {  // the next gap
      ++resent_;
      send(segment.flow, flow.oldest);
    }
  } else if (missing == flow.oldest && flow.next > flow.oldest && ++flow.repeated_acks == kRepeatedAcks &&
             flow.oldest >= flow.recover) {
    flow.window.on_loss(flow.oldest, flow.next);
    flow.recover = flow.next;
    ++resent_;
    send(segment.flow, flow.oldest);
  }
  send_more(segment.flow);
}

void Flows::on_timer(uint32_t index) {
  Flow& flow = flows_[index];
  flow.timer = false;
  if (!flow.open || flow.oldest == flow.next) return;
  if (network_.now() >= flow.due) {
    flow.window.on_timeout();
    ++flow.timeouts;
    flow.repeated_acks = 0;
    flow.recover = 0;
    resent_ += flow.next - flow.oldest;
    flow.next = flow.oldest;
    send_more(index);
    flow.due = network_.now() + flow.rtt.rto_ns(flow.timeouts) * kPsPerNs;
  }
  arm(index);
}

}  // namespace gatun::net
