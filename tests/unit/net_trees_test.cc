#include <catch2/catch.hpp>

#include "experiments/net/trees.h"
#include "experiments/net/workers.h"

using namespace gatun;
using namespace gatun::net;

namespace {

// Four hosts on two leaves below one spine, all in one tree.
struct Four {
  Four()
      : topology(std::move(Topology::leaf_spine({.hosts = 4, .hosts_per_leaf = 2, .spines = 1}).value())),
        network(topology, {}),
        trees(network) {
    const uint32_t hosts[] = {0, 1, 2, 3};
    const std::vector<uint32_t> roots = Trees::roots(topology, hosts);
    REQUIRE(roots.size() == 1);
    REQUIRE(trees.add(9, 2, roots[0], 4, hosts, 0, &seats).ok());
    REQUIRE(trees.nodes() == 3);
  }

  void contribute(uint32_t rank, uint32_t seq, bool congested = false) {
    const uint32_t index = network.make();
    Packet& packet = network.packet(index);
    packet = {};
    packet.target = seats[rank].node;
    packet.wire_bytes = 1538;
    packet.header = {.tree = 2, .child = seats[rank].child, .job = 9, .seq = seq, .contributors = 1, .elems = 4};
    if (congested) packet.header.flags |= kFlagCongested;
    network.send(topology.nic(rank), index);
    run();
  }

  void run() {
    Network::Queue::Event event;
    while (network.next(&event)) {
      const uint32_t index = network.take_arrival();
      const uint32_t device = topology.to(event.index);
      if (!topology.is_host(device)) {
        trees.on_packet(index);
        continue;
      }
      CHECK(network.packet(index).target == device);  // ranks are hosts here
      CHECK(network.packet(index).header.job == 9);
      CHECK(network.packet(index).header.tree == 2);
      got.emplace_back(device, network.packet(index).header);
      network.free(index);
    }
  }

  Topology topology;
  Network network;
  Trees trees;
  std::vector<Trees::Seat> seats;
  std::vector<std::pair<uint32_t, Header>> got;
};

}  // namespace

TEST_CASE("on_packet__the_last_contribution_answers_all", "[net]") {
  Four four;
  for (const uint32_t rank : {2u, 0u, 3u}) four.contribute(rank, 0);
  CHECK(four.got.empty());
  CHECK(four.trees.open_banks() > 0);
  four.contribute(1, 0);
  REQUIRE(four.got.size() == 4);
  for (const auto& [host, header] : four.got) {
    CHECK(header.type == PacketType::kResult);
    CHECK(header.contributors == 4);
    CHECK_FALSE(header.flags & kFlagCongested);
  }
  CHECK(four.trees.open_banks() == 0);
  CHECK(four.trees.stats().chunks == 1);
  CHECK(four.network.in_flight() == 0);
}

TEST_CASE("on_packet__one_mark_reaches_all", "[net]") {
  Four four;
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) four.contribute(rank, 0, rank == 2);
  REQUIRE(four.got.size() == 4);
  for (const auto& [host, header] : four.got) CHECK(header.flags & kFlagCongested);
  CHECK(four.trees.stats().marked == 1);
}

TEST_CASE("on_packet__a_repeat_hears_who_waits", "[net]") {
  Four four;
  four.contribute(0, 0);
  four.contribute(0, 0);  // its leaf waits for rank 1
  REQUIRE(four.got.size() == 1);
  CHECK(four.got[0].first == 0);
  CHECK(four.got[0].second.type == PacketType::kStatus);
  four.contribute(1, 0);
  four.got.clear();
  four.contribute(1, 0);  // the root waits for the other leaf; all of this leaf hear it
  REQUIRE(four.got.size() == 2);
  for (const auto& [host, header] : four.got) CHECK((host < 2 && header.type == PacketType::kStatus && header.seq == 0));
  CHECK(four.trees.stats().repeats == 1);
  CHECK(four.trees.stats().statuses == 2);
}

TEST_CASE("on_packet__a_repeat_of_what_is_answered_gets_the_answer", "[net]") {
  Four four;
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) four.contribute(rank, 0);
  four.got.clear();
  four.contribute(3, 0);
  REQUIRE(four.got.size() == 1);
  CHECK(four.got[0].first == 3);
  CHECK(four.got[0].second.type == PacketType::kResult);
  CHECK(four.got[0].second.contributors == 4);
  four.contribute(0, 8);  // the bank goes to a later chunk, and what is older is stale
  four.got.clear();
  four.contribute(0, 0);
  CHECK(four.got.empty());
  CHECK(four.trees.stats().drops == 1);
}

TEST_CASE("add__a_job_on_one_leaf_is_one_node", "[net]") {
  const Topology topology = std::move(Topology::leaf_spine({.hosts = 64, .hosts_per_leaf = 32}).value());
  Network network(topology, {});
  Trees trees(network);
  std::vector<Trees::Seat> seats;
  const uint32_t hosts[] = {3, 9, 17};
  REQUIRE(trees.add(0, 0, topology.leaf(3), 4, hosts, 0, &seats).ok());
  CHECK(trees.nodes() == 1);
  CHECK(seats[2].child == 2);
}
