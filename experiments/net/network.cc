#include "experiments/net/network.h"

namespace gatun::net {
namespace {

constexpr uint32_t kPacketBytes = 1500;
constexpr TimePs kNeverPs = INT64_MAX / 2;

}  // namespace

QueueLimits usual_limits(uint32_t gbps) {
  struct Point {
    uint32_t gbps, packets;
  };
  constexpr Point kPoints[] = {{0, 20}, {10, 65}, {25, 100}, {100, 300}};  // 20: DCTCP at 1 Gbit/s and below
  uint32_t packets = 3 * gbps;
  for (size_t i = 1; i < std::size(kPoints); ++i) {
    const Point low = kPoints[i - 1], high = kPoints[i];
    if (gbps < low.gbps || gbps > high.gbps) continue;
    packets = low.packets + (high.packets - low.packets) * (gbps - low.gbps) / (high.gbps - low.gbps);
  }
  return {.mark_bytes = packets * kPacketBytes, .buffer_bytes = packets * kPacketBytes / 65 * 240};
}

Network::Network(const Topology& topology, const QueueLimits& limits) : topology_(topology) {
  ports_.resize(2 * topology.links().size());
  for (uint32_t p = 0; p < ports_.size(); ++p) {
    const Link& link = topology.links()[p / 2];
    const QueueLimits usual = usual_limits(link.gbps);
    Port& port = ports_[p];
    port.ps_per_byte = ps_per_byte(link.gbps);
    port.in_switch = !topology.is_host(topology.from(p));
    port.delay = link.delay;
    port.mark_over = TimePs{port.ps_per_byte} * (limits.mark_bytes > 0 ? limits.mark_bytes : usual.mark_bytes);
    port.lose_over = TimePs{port.ps_per_byte} * (limits.buffer_bytes > 0 ? limits.buffer_bytes : usual.buffer_bytes);
    if (!port.in_switch) port.lose_over = kNeverPs;
  }
}

bool Network::next(Queue::Event* event) {
  if (queue_.empty()) return false;
  *event = queue_.top();
  now_ = event->time;
  ++events_;
  hash_ = (hash_ ^ (static_cast<uint64_t>(now_) << 3 ^ event->index ^ static_cast<uint64_t>(event->kind) << 61)) *
          0x100000001b3u;
  if (event->kind != EventKind::kArrive) {
    queue_.pop();
    return true;
  }
  Port& port = ports_[event->index];
  arrival_ = port.head;
  port.head = packet(arrival_).next;
  ++arrived_;
  if (port.head == kNone) {
    queue_.pop();
  } else {
    queue_.pop_and_push(packet(port.head).arrives);
  }
  return true;
}

void Network::send(uint32_t port_index, uint32_t index) {
  Port& port = ports_[port_index];
  Packet& p = packet(index);
  const TimePs backlog = port.free_at > now_ ? port.free_at - now_ : 0;
  const TimePs takes = TimePs{p.wire_bytes} * port.ps_per_byte;
  ++sent_;
  if (port.in_switch) queue_bytes_.add(static_cast<uint64_t>(backlog) / port.ps_per_byte);
  if (backlog + takes > port.lose_over) {
    ++port.losses;
    ++lost_;
    free(index);
    return;
  }
  ++port.packets;
  port.bytes += p.wire_bytes;
  if (backlog > port.mark_over && p.markable) {
    p.congested = true;
    ++port.marks;
  }
  port.free_at = now_ + backlog + takes;
  p.arrives = port.free_at + port.delay;
  p.next = kNone;
  if (port.head == kNone) {
    port.head = index;
    queue_.push(p.arrives, EventKind::kArrive, port_index);
  } else {
    packet(port.tail).next = index;
  }
  port.tail = index;
}

}  // namespace gatun::net
