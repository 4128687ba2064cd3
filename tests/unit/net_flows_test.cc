#include <algorithm>
#include <catch2/catch.hpp>

#include "experiments/net/flows.h"
#include "tests/unit/net_fixture.h"

using namespace gatun;
using namespace gatun::net;

namespace {

constexpr double kFullFrame = 1500 + kFrameBytes;

void check_conserved(const Star& star) {
  CHECK(star.flows.active() == 0);
  CHECK(star.network.sent() == star.network.arrived() + star.network.lost());
  CHECK(star.network.in_flight() == 0);
}

}  // namespace

TEST_CASE("open__a_packet_takes_two_links", "[net]") {
  Star star(2, 10);
  star.flows.open(0, 1, 1000);
  star.run();
  REQUIRE(star.completed_at.size() == 1);
  CHECK(star.completed_at[0] == 2 * ((1000 + kTcpBytes + kFrameBytes) * 800 + kPsPerUs));
  CHECK(star.received[0] == 1);
  check_conserved(star);
}

TEST_CASE("open__a_long_flow_reaches_the_link_rate", "[net]") {
  for (const uint32_t gbps : {10u, 100u}) {
    Star star(2, gbps);
    constexpr uint64_t kPackets = 20000;
    star.flows.open(0, 1, kPackets * star.flows.payload_bytes());
    star.run();
    const double least = kPackets * kFullFrame * ps_per_byte(gbps);
    REQUIRE(star.completed_at.size() == 1);
    CHECK(static_cast<double>(star.completed_at[0]) >= least);
    CHECK(static_cast<double>(star.completed_at[0]) < 1.02 * least + 100 * kPsPerUs);
    CHECK(star.network.lost() == 0);
    check_conserved(star);
  }
}

TEST_CASE("connect__two_flows_share_a_link_evenly_and_keep_its_queue_short", "[net]") {
  Star star(3, 10);
  for (uint32_t from = 0; from < 2; ++from) star.flows.allow(star.flows.connect(from, 2, 0), UINT32_MAX);
  star.run(200 * kPsPerMs);
  const double full = 200.0 * kPsPerMs / (kFullFrame * 800);
  CHECK(static_cast<double>(star.received[0] + star.received[1]) > 0.98 * full);
  CHECK(jain(star.received) > 0.97);
  CHECK(star.network.queue_bytes().quantile(0.99) < 2 * 65 * 1500);
  CHECK(star.network.lost() == 0);
}

TEST_CASE("connect__plain_tcp_fills_the_buffer_and_no_switch_marks_it", "[net]") {
  Star star(3, 10, {}, {.ecn = false});
  for (uint32_t from = 0; from < 2; ++from) star.flows.allow(star.flows.connect(from, 2, 0), UINT32_MAX);
  star.run(200 * kPsPerMs);
  CHECK(star.network.queue_bytes().quantile(0.99) > 3 * 65 * 1500);
  CHECK(star.network.lost() > 0);
  for (const Network::Port& port : star.network.ports()) CHECK(port.marks == 0);
}

TEST_CASE("connect__sends_no_more_than_is_allowed", "[net]") {
  Star star(2, 10);
  const uint32_t flow = star.flows.connect(0, 1, 7);
  star.run();
  CHECK(star.network.sent() == 0);
  star.flows.allow(flow, 3);
  star.run();
  CHECK(star.received[flow] == 3);
  star.flows.allow(flow, 500);
  star.run();
  CHECK(star.received[flow] == 500);
  CHECK(star.flows.rank(flow) == 7);
}

TEST_CASE("on_ack__losses_are_repaired_under_incast", "[net]") {
  Star star(17, 10, {.mark_bytes = 1'000'000, .buffer_bytes = 15'000});  // no marks: only loss slows them
  for (uint32_t from = 0; from < 16; ++from) star.flows.open(from, 16, 400'000 + from * 1000);
  star.run();
  CHECK(star.network.lost() > 0);
  CHECK(star.flows.resent() >= star.network.lost());
  REQUIRE(star.completed_at.size() == 16);
  for (uint32_t flow = 0; flow < 16; ++flow) CHECK(star.received[flow] == (400'000 + flow * 1000 + 1459) / 1460);
  check_conserved(star);
}

TEST_CASE("on_timer__a_flow_whose_packets_all_get_lost_begins_again", "[net]") {
  Star star(3, 10, {.mark_bytes = 1'000'000, .buffer_bytes = 3200});
  for (uint32_t round = 0; round < 50; ++round) {
    star.flows.open(0, 2, 30'000);
    star.flows.open(1, 2, 30'000);
  }
  star.run();
  CHECK(star.completed_at.size() == 100);
  CHECK(star.network.now() > 2 * kPsPerMs);  // timeouts
  check_conserved(star);
}

TEST_CASE("open__places_are_used_again", "[net]") {
  Star star(2, 10);
  for (int i = 0; i < 100; ++i) {
    CHECK(star.flows.open(0, 1, 5000) == 0);
    star.run(star.network.now() + kPsPerMs / 10);
  }
  star.run();
  CHECK(star.completed_at.size() == 100);
  check_conserved(star);
}
