// Trees: the aggregation side of the switches. Each node of a job's tree is the product's Aggregator in one switch; a packet
// names the node that it is for, so nothing is looked up.
//
// A tree is the shortest ways from the job's leaves to its root, the same for all that pass a switch. The root is one of the
// switches that are nearest to all of them: the leaf of a job on one leaf, a spine, the core of a job in several pods.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experiments/net/network.h"
#include "protocols/aggregator.h"

namespace gatun::net {

class Trees {
 public:
  // How a job's first tree finds its root among the switches that could be it; the others follow in turn.
  enum class Roots : uint8_t { kInTurn, kByHash };
  // Where a rank joins a tree: the node that takes its contributions, as this child.
  struct Seat {
    uint32_t node = kNone;
    uint8_t child = 0;
  };

  explicit Trees(Network& network) : network_(network) {}

  // The switches nearest to all of these hosts.
  static std::vector<uint32_t> roots(const Topology& topology, std::span<const uint32_t> hosts);
  // Adds a tree of a job to the hosts of ranks first_rank, first_rank + 1, ... Error: a switch would have too many children.
  Status add(uint32_t job, uint8_t tree, uint32_t root, uint32_t window, std::span<const uint32_t> hosts,
             uint32_t first_rank, std::vector<Seat>* seats);

  void on_packet(uint32_t packet);

  struct Stats {
    uint64_t chunks = 0, marked = 0;  // completed at roots; of those, with a mark
    uint64_t statuses = 0, repeats = 0, drops = 0;
  };
  const Stats& stats() const { return stats_; }
  size_t nodes() const { return nodes_.size(); }
  uint32_t open_banks() const;

 private:
  struct Child {
    uint32_t port = kNone, target = kNone;
  };
  struct Node {
    Aggregator machine;
    uint32_t job = 0;
    uint8_t tree = 0, child_at_parent = 0;
    uint32_t parent = kNone, port_up = kNone;  // kNone: the root
    std::vector<Child> children;
  };
  struct Draft;

  static uint32_t draft_at(uint32_t device, std::vector<Draft>* drafts);
  void on_data(Node& node, const Header& header, bool congested, uint32_t wire_bytes);
  void on_status(Node& node, const Header& header, uint32_t wire_bytes);
  void send(uint32_t port, uint32_t target, const Header& header, uint32_t wire_bytes);
  void answer_all(Node& node, uint32_t bank, uint32_t wire_bytes);
  void answer_one(Node& node, uint32_t bank, uint8_t child, uint32_t wire_bytes);
  void send_up(Node& node, uint32_t bank, bool repeat, uint32_t wire_bytes);

  Network& network_;
  std::vector<Node> nodes_;
  Stats stats_;
};

}  // namespace gatun::net
