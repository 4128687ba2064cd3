// What a law of the congestion window must do, on simulated links with the machines around it.
#include <catch2/catch.hpp>

#include "experiments/net/simulation.h"
#include "tests/sim/rng.h"
#include "tests/unit/net_fixture.h"

using namespace gatun;
using namespace gatun::net;

namespace {

constexpr uint32_t kMarkBytes = 65 * 1500;  // K at 10 Gbit/s
constexpr uint32_t kChunkWireBytes = 1538;

// A switch with three hosts. Jobs of the ranks on hosts 0 and 1, which meet on these hosts' links, and a flow from host 2 to
// host 1, whose link it shares with the results.
struct Meeting : Star {
  Meeting(uint32_t jobs, const Workers::Config& config)
      : Star(3, 10), trees(network), workers(network, config), done(2 * jobs), acked(2 * jobs) {
    const std::vector<uint32_t> hosts = {0, 1};
    for (uint32_t job = 0; job < jobs; ++job) {
      std::vector<std::vector<Trees::Seat>> seats(config.trees);
      for (uint32_t t = 0; t < config.trees; ++t) {
        REQUIRE(trees.add(job, static_cast<uint8_t>(t), 3, config.window, hosts, 2 * job, &seats[t]).ok());
      }
      for (uint32_t rank = 0; rank < 2; ++rank) {
        std::vector<Trees::Seat> own;
        for (const auto& of_tree : seats) own.push_back(of_tree[rank]);
        workers.add(job, hosts[rank], own);
      }
    }
  }

  void run_all(TimePs until = INT64_MAX) {
    Network::Queue::Event event;
    while (network.now() < until && network.next(&event)) {
      if (event.kind == EventKind::kRank) workers.on_timer(event.index);
      if (event.kind == EventKind::kFlow) flows.on_timer(event.index);
      if (event.kind == EventKind::kArrive) arrive(event.index);
    }
  }

  void arrive(uint32_t port) {
    const uint32_t index = network.take_arrival();
    const Packet& packet = network.packet(index);
    if (packet.kind != PacketKind::kTree) return on_arrival(port);
    if (lose_percent > 0 && losses.below(100) < lose_percent) return network.free(index);
    if (!topology.is_host(topology.to(port))) return trees.on_packet(index);
    const uint32_t rank = packet.target;
    acked[rank] += packet.header.type == PacketType::kResult;
    if (!workers.on_packet(index)) return;
    ++done[rank];
    done_at = network.now();
  }

  void all_reduce(uint32_t job, uint64_t bytes) {
    for (uint32_t rank : {2 * job, 2 * job + 1}) workers.all_reduce(rank, bytes);
  }

  Trees trees;
  Workers workers;
  std::vector<uint32_t> done;
  std::vector<uint64_t> acked;  // results, by rank
  uint32_t lose_percent = 0;
  sim::Stream losses{1, sim::Draw::kNetFlow};
  TimePs done_at = 0;
};

double link_chunks(TimePs time) {  // what a link of 10 Gbit/s carries
  return static_cast<double>(time) / (800 * kChunkWireBytes);
}

}  // namespace

TEST_CASE("law__equal_jobs_get_equal_shares_and_all_of_the_link", "[net]") {
  for (const uint32_t jobs : {2u, 4u}) {
    Meeting meeting(jobs, {.trees = 1, .window = 128});
    for (uint32_t job = 0; job < jobs; ++job) meeting.all_reduce(job, 100'000'000);
    meeting.run_all(5 * kPsPerMs);
    const std::vector<uint64_t> before = meeting.acked;
    meeting.run_all(25 * kPsPerMs);
    std::vector<uint64_t> shares;
    uint64_t sum = 0;
    for (uint32_t job = 0; job < jobs; ++job) {
      shares.push_back(meeting.acked[2 * job] - before[2 * job]);
      sum += shares.back();
    }
    INFO("jobs " << jobs);
    CHECK(jain(shares) >= 0.95);
    CHECK(static_cast<double>(sum) > 0.93 * link_chunks(20 * kPsPerMs));
  }
}

TEST_CASE("law__a_tree_and_a_dctcp_flow_share_a_link", "[net]") {
  Meeting meeting(1, {.trees = 1, .window = 128});
  meeting.all_reduce(0, 100'000'000);
  meeting.run_all(5 * kPsPerMs);
  const uint32_t flow = meeting.flows.connect(2, 1, 1);
  meeting.flows.allow(flow, 1'000'000);
  meeting.run_all(25 * kPsPerMs);
  const uint64_t of_flow = meeting.received[flow], of_job = meeting.acked[1];
  meeting.run_all(65 * kPsPerMs);
  const auto flow_share = static_cast<double>(meeting.received[flow] - of_flow);
  const auto job_share = static_cast<double>(meeting.acked[1] - of_job);
  INFO("job " << job_share << ", flow " << flow_share);
  CHECK(flow_share + job_share > 0.95 * link_chunks(40 * kPsPerMs));
  CHECK(job_share > 0.3 * (flow_share + job_share));
  CHECK(job_share < 0.7 * (flow_share + job_share));
}

TEST_CASE("law__no_queue_stands_over_the_threshold", "[net]") {
  // Four jobs cross two links up from each leaf.
  Scenario s;
  s.shape = {.hosts = 16, .hosts_per_leaf = 4, .over_subscription = 2};
  s.jobs.assign(4, {"alexnet", 4, 0});
  s.scale = 0.01;
  s.iterations = 2;
  s.trees = 4;
  double mean = 0;
  for (const uint32_t window : {64u, kWindowOfPath}) {
    s.window = window;
    auto simulation = std::move(Simulation::make(s).value());
    while (simulation->step(1u << 20)) {
    }
    const Report report = simulation->report();
    CHECK(report.losses == 0);
    CHECK(report.queue_mean < kMarkBytes);
    CHECK(report.queue_p99 < 2 * kMarkBytes);                          // a mark is a round trip old when it is heard
    if (window == kWindowOfPath) CHECK(report.queue_mean < mean / 2);  // for jobs that take nobody's share that is enough
    mean = report.queue_mean;
  }
}

TEST_CASE("law__a_free_link_is_filled_at_once", "[net]") {
  for (const uint32_t trees : {1u, 8u}) {
    Meeting meeting(1, {.trees = trees, .window = 64});
    meeting.all_reduce(0, 300'000);
    meeting.run_all();
    INFO("trees " << trees);
    CHECK(link_chunks(meeting.done_at) < 1.2 * 300'000 / 1440);
  }
}

TEST_CASE("law__a_late_rank_is_not_taken_for_congestion", "[net]") {
  TimePs in_time = 0;
  uint32_t window = 0;
  // In time, late by less than a timeout, when nobody asks, and by several.
  for (const TimePs late : {TimePs{0}, kPsPerMs, 9 * kPsPerMs}) {
    Meeting meeting(1, {.trees = 1, .window = 32});
    meeting.all_reduce(0, 1'000'000);
    meeting.run_all();
    const TimePs begins = meeting.network.now() + late;
    meeting.workers.all_reduce(0, 1'000'000);
    meeting.run_all(begins);
    const TimePs comes = meeting.network.now();
    meeting.workers.all_reduce(1, 1'000'000);
    meeting.run_all();
    CHECK(meeting.done == std::vector<uint32_t>{2, 2});
    if (late == 0) {
      in_time = meeting.done_at - comes;
      window = meeting.workers.window(0, 0);
    }
    CHECK(static_cast<double>(meeting.done_at - comes) < 1.05 * static_cast<double>(in_time));
    CHECK(meeting.workers.window(0, 0) + 1 >= window);
  }
}

TEST_CASE("law__lives_under_any_loss", "[net]") {
  for (const uint32_t percent : {2u, 20u, 50u}) {
    Meeting meeting(2, {.trees = 2, .window = 32, .rto_min = kMs});
    meeting.lose_percent = percent;
    for (const uint32_t job : {0u, 1u}) meeting.all_reduce(job, 200'000);
    meeting.run_all();
    CHECK(meeting.done == std::vector<uint32_t>(4, 1));
    for (uint32_t rank = 0; rank < 4; ++rank) CHECK(meeting.workers.window(rank, 0) >= 1);
  }
}
