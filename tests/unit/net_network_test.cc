#include <catch2/catch.hpp>

#include "experiments/net/network.h"
#include "tests/unit/net_fixture.h"

using namespace gatun;
using namespace gatun::net;

namespace {

uint32_t make(Network& network, uint32_t bytes, PacketKind kind = PacketKind::kSegment) {
  const uint32_t index = network.make();
  network.packet(index) = {};
  network.packet(index).wire_bytes = bytes;
  network.packet(index).kind = kind;
  network.packet(index).markable = kind != PacketKind::kAck;
  return index;
}

// The packets that arrive, in order, with their times; they are freed.
std::vector<Packet> drain(Network& network) {
  std::vector<Packet> packets;
  Network::Queue::Event event;
  while (network.next(&event)) {
    const uint32_t index = network.take_arrival();
    packets.push_back(network.packet(index));
    CHECK(packets.back().arrives == network.now());
    network.free(index);
  }
  return packets;
}

}  // namespace

TEST_CASE("usual_limits__known_points_and_between", "[net]") {
  CHECK(usual_limits(10).mark_bytes == 65 * 1500);
  CHECK(usual_limits(10).buffer_bytes == 240 * 1500);
  CHECK(usual_limits(25).mark_bytes == 100 * 1500);
  CHECK(usual_limits(40).mark_bytes == 140 * 1500);
  CHECK(usual_limits(100).mark_bytes == 300 * 1500);
  CHECK(usual_limits(400).mark_bytes == 1200 * 1500);
}

TEST_CASE("send__serialisation_is_exact_to_the_picosecond", "[net]") {
  struct Case {
    uint32_t gbps, ps;
  };
  for (const Case c : {Case{10, 800}, Case{25, 320}, Case{40, 200}, Case{100, 80}, Case{400, 20}}) {
    const Topology topology = make_star(2, c.gbps);
    Network network(topology, {});
    for (const uint32_t bytes : {1538u, 84u, 1u}) network.send(0, make(network, bytes));
    const std::vector<Packet> packets = drain(network);
    REQUIRE(packets.size() == 3);
    CHECK(packets[0].arrives == 1538 * c.ps + kPsPerUs);
    CHECK(packets[1].arrives == 1622 * c.ps + kPsPerUs);
    CHECK(packets[2].arrives == 1623 * c.ps + kPsPerUs);
  }
}

TEST_CASE("send__marks_what_finds_more_than_k_before_it", "[net]") {
  const Topology topology = make_star(2, 10);
  Network network(topology, {.mark_bytes = 10 * 1500, .buffer_bytes = 100 * 1500});
  for (int i = 0; i < 20; ++i) network.send(1, make(network, 1500));
  network.send(1, make(network, 84, PacketKind::kAck));
  const std::vector<Packet> packets = drain(network);
  for (size_t i = 0; i < 20; ++i) CHECK(packets[i].congested == (i > 10));  // the eleventh finds K and not more
  CHECK_FALSE(packets[20].congested);                                       // acknowledgements carry no mark
  CHECK(network.ports()[1].marks == 9);
  CHECK(network.queue_bytes().max() == 20 * 1500);
}

TEST_CASE("send__loses_what_the_buffer_cannot_hold_and_counts_it", "[net]") {
  const Topology topology = make_star(2, 10);
  Network network(topology, {.mark_bytes = 1500, .buffer_bytes = 8 * 1500});
  for (int i = 0; i < 30; ++i) network.send(1, make(network, 1500));  // from the switch
  for (int i = 0; i < 30; ++i) network.send(0, make(network, 1500));  // from a host, which loses nothing
  CHECK(network.in_flight() == 38);
  CHECK(network.sent() == network.arrived() + network.lost() + network.in_flight());
  CHECK(network.ports()[1].losses == 22);
  CHECK(network.ports()[0].losses == 0);
  CHECK(drain(network).size() == 38);
  CHECK(network.sent() == network.arrived() + network.lost());
  CHECK(network.in_flight() == 0);
}

TEST_CASE("histogram__quantiles_to_a_sixteenth", "[net]") {
  Histogram histogram;
  for (uint64_t v = 0; v < 100000; ++v) histogram.add(v);
  CHECK(histogram.count() == 100000);
  CHECK(histogram.max() == 99999);
  CHECK(histogram.mean() == Approx(49999.5));
  for (const double share : {0.001, 0.5, 0.99}) {
    const auto quantile = static_cast<double>(histogram.quantile(share));
    CHECK(quantile <= share * 100000);
    CHECK(quantile >= share * 100000 * 15 / 16 - 1);
  }
  CHECK(Histogram().quantile(0.99) == 0);
  histogram.add(UINT64_MAX);
  CHECK(histogram.quantile(1) >= UINT64_MAX - (UINT64_MAX >> 4));
}
