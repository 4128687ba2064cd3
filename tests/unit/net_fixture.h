// A star of hosts around one switch, and the loop that moves the packets of flows through it.
#pragma once

#include <vector>

#include "experiments/net/flows.h"
#include "experiments/net/network.h"
#include "experiments/net/topology.h"

namespace gatun::net {

inline Topology make_star(uint32_t hosts, uint32_t gbps) {
  std::vector<Link> links;
  for (uint32_t h = 0; h < hosts; ++h) links.push_back({h, hosts, gbps, kPsPerUs});
  return std::move(Topology::make(hosts, 1, std::move(links)).value());
}

// Jain's index: 1 when all shares are equal.
inline double jain(const std::vector<uint64_t>& shares) {
  double sum = 0, squares = 0;
  for (const uint64_t share : shares) {
    sum += static_cast<double>(share);
    squares += static_cast<double>(share) * static_cast<double>(share);
  }
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

struct Star {
  Star(uint32_t hosts, uint32_t gbps, const QueueLimits& limits = {}, const Flows::Config& config = {})
      : topology(make_star(hosts, gbps)), network(topology, limits), flows(network, config) {}

  // Until nothing is left to do, or until then.
  void run(TimePs until = INT64_MAX) {
    Network::Queue::Event event;
    while (network.now() < until && network.next(&event)) {
      if (event.kind == EventKind::kFlow) flows.on_timer(event.index);
      if (event.kind == EventKind::kArrive) on_arrival(event.index);
    }
  }

  void on_arrival(uint32_t port) {
    const uint32_t index = network.take_arrival();
    const Packet& packet = network.packet(index);
    if (topology.to(port) >= topology.hosts()) {
      network.send(topology.route(topology.to(port), packet.target, packet.segment.hash), index);
    } else if (packet.kind == PacketKind::kAck) {
      flows.on_ack(index);
    } else {
      const Flows::News news = flows.on_segment(index);
      if (news.flow == kNone) return;
      if (received.size() <= news.flow) received.resize(news.flow + 1);
      received[news.flow] += news.packets;
      if (news.complete) completed_at.push_back(network.now());
    }
  }

  Topology topology;
  Network network;
  Flows flows;
  std::vector<uint64_t> received;  // packets, by flow
  std::vector<TimePs> completed_at;
};

}  // namespace gatun::net
