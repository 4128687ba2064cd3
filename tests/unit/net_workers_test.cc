#include <catch2/catch.hpp>

#include "experiments/net/workers.h"
#include "tests/unit/net_fixture.h"

using namespace gatun;
using namespace gatun::net;

namespace {

// Ranks around one switch with one tree. Packets to the switch get lost while `lose` is above 0.
struct Round {
  Round(uint32_t ranks, const Workers::Config& config)
      : topology(make_star(ranks, 10)), network(topology, {}), trees(network), workers(network, config), done(ranks) {
    std::vector<uint32_t> hosts;
    for (uint32_t h = 0; h < ranks; ++h) hosts.push_back(h);
    std::vector<std::vector<Trees::Seat>> seats(config.trees);
    for (uint32_t t = 0; t < config.trees; ++t) {
      REQUIRE(trees.add(0, static_cast<uint8_t>(t), topology.hosts(), config.window, hosts, 0, &seats[t]).ok());
    }
    for (const uint32_t h : hosts) {
      std::vector<Trees::Seat> own;
      for (const auto& of_tree : seats) own.push_back(of_tree[h]);
      workers.add(0, h, own);
    }
  }

  void run() {
    Network::Queue::Event event;
    while (network.next(&event)) {
      if (event.kind == EventKind::kRank) {
        workers.on_timer(event.index);
        continue;
      }
      const uint32_t index = network.take_arrival();
      const uint32_t device = topology.to(event.index);
      const uint32_t rank = network.packet(index).target;
      if (!topology.is_host(device)) {
        if (lose > 0) {
          --lose;
          network.free(index);
        } else {
          trees.on_packet(index);
        }
      } else if (workers.on_packet(index)) {
        ++done[rank];
      }
    }
  }

  Topology topology;
  Network network;
  Trees trees;
  Workers workers;
  std::vector<uint32_t> done;
  uint32_t lose = 0;
};

}  // namespace

TEST_CASE("all_reduce__every_rank_is_done_once", "[net]") {
  Round star(5, {.trees = 3, .window = 8});
  for (int round = 1; round <= 3; ++round) {
    for (uint32_t rank = 0; rank < 5; ++rank) star.workers.all_reduce(rank, 100'001);
    star.run();
    for (const uint32_t done : star.done) CHECK(done == static_cast<uint32_t>(round));
  }
  CHECK(star.workers.resent() == 0);
  CHECK(star.workers.payload_bytes() == 1440);
  CHECK(star.trees.stats().chunks == 3 * ((100'001 / 4 + 359) / 360));
  CHECK(star.network.in_flight() == 0);
}

TEST_CASE("on_timer__what_is_lost_is_sent_again", "[net]") {
  for (const bool congestion_control : {true, false}) {
    Round star(2, {.trees = 2, .window = 4, .congestion_control = congestion_control, .rto_min = kMs});
    star.lose = 2;
    for (uint32_t rank = 0; rank < 2; ++rank) star.workers.all_reduce(rank, 1000);
    star.run();
    CHECK(star.done == std::vector<uint32_t>{1, 1});
    CHECK(star.workers.resent() == 2);
    CHECK(star.network.now() > kPsPerMs);
  }
}

TEST_CASE("on_packet__a_status_says_that_others_are_late", "[net]") {
  Round star(2, {.trees = 1, .window = 4, .rto_min = kMs});
  star.workers.all_reduce(0, 1000);
  // The other rank comes 20 timeouts later; until then the first one asks, ever more rarely.
  star.network.at(20 * kPsPerMs, EventKind::kComputed, 1);
  Network::Queue::Event event;
  while (star.network.next(&event) && event.kind != EventKind::kComputed) {
    if (event.kind == EventKind::kRank) {
      star.workers.on_timer(event.index);
    } else if (const uint32_t index = star.network.take_arrival(); star.topology.is_host(star.topology.to(event.index))) {
      CHECK_FALSE(star.workers.on_packet(index));
    } else {
      star.trees.on_packet(index);
    }
  }
  CHECK(star.trees.stats().statuses >= 3);
  CHECK(star.trees.stats().statuses <= 20);
  star.workers.all_reduce(1, 1000);
  star.run();
  CHECK(star.done == std::vector<uint32_t>{1, 1});
}

TEST_CASE("window__without_congestion_control_it_stands", "[net]") {
  Round star(2, {.trees = 1, .window = 32, .congestion_control = false});
  CHECK(star.workers.window(0, 0) == 32);
  for (uint32_t rank = 0; rank < 2; ++rank) star.workers.all_reduce(rank, 200'000);
  star.run();
  CHECK(star.workers.window(0, 0) == 32);
  Round controlled(2, {.trees = 1, .window = 32});
  CHECK(controlled.workers.window(0, 0) == 16);
}
