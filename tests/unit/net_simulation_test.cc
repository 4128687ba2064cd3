// Whole runs of the network simulation: trees, workers, rings and jobs together.
#include <catch2/catch.hpp>

#include "experiments/net/simulation.h"

using namespace gatun;
using namespace gatun::net;

namespace {

struct Run {
  Report report;
  uint64_t sent = 0, arrived = 0, lost = 0, in_flight = 0;
};

Run run(const Scenario& scenario) {
  Result<std::unique_ptr<Simulation>> made = Simulation::make(scenario);
  INFO(made.status().message());
  REQUIRE(made.ok());
  Simulation& simulation = *made.value();
  while (simulation.step(1000)) {
    const Network& n = simulation.network();
    REQUIRE(n.sent() == n.arrived() + n.lost() + n.in_flight());
  }
  const Network& n = simulation.network();
  return {simulation.report(), n.sent(), n.arrived(), n.lost(), n.in_flight()};
}

std::string refusal(const Scenario& scenario) {
  Result<std::unique_ptr<Simulation>> made = Simulation::make(scenario);
  return made.ok() ? "" : made.status().message();
}

Scenario one_job(const char* model, uint32_t ranks, double scale) {
  Scenario s;
  s.shape = {.hosts = 64, .hosts_per_leaf = 16};
  s.jobs = {{model, ranks, kPsPerMs}};
  s.scale = scale;
  s.iterations = 1;
  return s;
}

double bytes_of(const Scenario& s) {
  return static_cast<double>(find_model(s.jobs[0].model)->parameters) * 4 * s.scale;
}

// Shortest time for so many bytes through a link, in ms.
double link_ms(double bytes, uint32_t payload_bytes) {
  return bytes / payload_bytes * (1500 + kFrameBytes) * 800 / kPsPerMs;
}

}  // namespace

TEST_CASE("simulation__a_job_on_one_switch_reaches_the_payload_rate", "[net]") {
  Scenario s = one_job("resnet50", 8, 0.05);
  s.placement = Placement::kPacked;
  const Report report = run(s).report;
  const double least = link_ms(bytes_of(s), 1440);
  CHECK(report.jobs[0].all_reduce_ms >= least);
  CHECK(report.jobs[0].all_reduce_ms < 1.01 * least);
  CHECK(report.losses == 0);
  CHECK(report.resent == 0);
}

TEST_CASE("simulation__trees_of_two_and_three_levels_reach_it_too", "[net]") {
  for (const char* topology : {"leaf-spine", "clos3"}) {
    Scenario s = one_job("resnet50", 32, 0.02);
    s.topology = topology;
    s.shape = {.hosts = 64, .hosts_per_leaf = 8, .leaves_per_pod = 4};
    const Report report = run(s).report;
    const double least = link_ms(bytes_of(s), 1440);
    CHECK(report.jobs[0].all_reduce_ms >= least);
    CHECK(report.jobs[0].all_reduce_ms < 1.03 * least);
  }
}

TEST_CASE("simulation__a_ring_reaches_its_bound", "[net]") {
  for (const uint32_t ranks : {2u, 8u}) {
    Scenario s = one_job("resnet50", ranks, 0.05);
    s.reduction = Reduction::kRing;
    const double least = link_ms(bytes_of(s) * 2 * (ranks - 1) / ranks, 1460);
    const Report report = run(s).report;
    CHECK(report.jobs[0].all_reduce_ms >= least);
    CHECK(report.jobs[0].all_reduce_ms < 1.15 * least);  // acknowledgements take 5.5 % of the links, slow start the rest
  }
}

TEST_CASE("simulation__every_world_size_completes_on_uneven_trees", "[net]") {
  for (uint32_t ranks = 1; ranks <= 33; ++ranks) {
    for (const Reduction reduction : {Reduction::kTrees, Reduction::kRing}) {
      Scenario s = one_job("alexnet", ranks, 0.0002);
      s.topology = ranks % 2 == 0 ? "leaf-spine" : "clos3";
      s.shape = {.hosts = 48, .hosts_per_leaf = 4, .leaves_per_pod = 3};
      s.placement = Placement::kRandom;
      s.seed = ranks;
      s.reduction = reduction;
      s.trees = 1 + ranks % 5;
      s.window = 4u << ranks % 4;
      s.iterations = 2;
      const Run r = run(s);
      CHECK(r.report.jobs[0].iterations >= 2);
      CHECK(r.sent == r.arrived + r.lost);
      CHECK(r.in_flight == 0);
    }
  }
}

TEST_CASE("simulation__small_buffers_lose_packets_and_nothing_else", "[net]") {
  for (const bool congestion_control : {true, false}) {
    Scenario s = one_job("alexnet", 16, 0.002);
    s.jobs.push_back({"vgg16", 16, kPsPerMs});
    s.shape.over_subscription = 4;
    s.limits = {.mark_bytes = 5'000, .buffer_bytes = 12'000};
    s.congestion_control = congestion_control;
    s.load = 0.4;
    const Run r = run(s);
    CHECK(r.lost > 0);
    CHECK(r.report.resent > 0);
    CHECK(r.report.jobs[1].iterations >= 1);
    CHECK(r.sent == r.arrived + r.lost);
  }
}

TEST_CASE("simulation__marks_hold_the_queues_and_without_control_they_do_not", "[net]") {
  // Four jobs cross four links up from each leaf.
  Scenario s = one_job("alexnet", 16, 0.01);
  s.jobs.assign(4, s.jobs[0]);
  s.jobs[0].compute = s.jobs[1].compute = s.jobs[2].compute = s.jobs[3].compute = 0;
  s.shape.over_subscription = 16;
  s.trees = 1;
  s.limits = {.mark_bytes = 30'000, .buffer_bytes = 1'000'000};
  const Report with = run(s).report;
  s.congestion_control = false;
  const Report without = run(s).report;
  CHECK(with.queue_p99 < 3 * 30'000);
  CHECK(without.queue_p99 > with.queue_p99);
  CHECK(without.marks > with.marks);
}

TEST_CASE("simulation__the_window_of_the_path_keeps_a_job_as_fast", "[net]") {
  for (const uint32_t gbps : {10u, 100u}) {
    for (const uint32_t trees : {1u, 8u}) {
      Scenario s = one_job("resnet50", 16, 0.02);
      s.shape.gbps = s.shape.fabric_gbps = gbps;
      s.trees = trees;
      s.window = kWindowOfPath;
      const double least = link_ms(bytes_of(s), 1440) * 10 / gbps;
      CHECK(run(s).report.jobs[0].all_reduce_ms < 1.1 * least);
    }
  }
}

TEST_CASE("simulation__one_seed_is_one_run", "[net]") {
  for (const Reduction reduction : {Reduction::kTrees, Reduction::kRing}) {
    Scenario s = one_job("alexnet", 16, 0.001);
    s.reduction = reduction;
    s.load = 0.5;
    s.limits = {.mark_bytes = 20'000, .buffer_bytes = 40'000};
    const Report a = run(s).report, b = run(s).report;
    CHECK(a.hash == b.hash);
    CHECK(a.events == b.events);
    CHECK(a.flows[0].p99 == b.flows[0].p99);
    s.seed = 2;
    CHECK(run(s).report.hash != a.hash);
  }
}

TEST_CASE("simulation__short_flows_see_the_same_arrivals_whatever_reduces", "[net]") {
  Scenario s = one_job("alexnet", 16, 0.001);
  s.load = 0.3;
  s.time = 30 * kPsPerMs;
  uint64_t counts[2];
  for (const Reduction reduction : {Reduction::kTrees, Reduction::kRing}) {
    s.reduction = reduction;
    const Report report = run(s).report;
    CHECK(report.arrivals_end >= s.time);
    counts[static_cast<int>(reduction)] = report.flows[0].count + report.flows[1].count + report.flows[2].count;
  }
  CHECK(counts[0] == Approx(counts[1]).epsilon(0.02));  // one ends an iteration later than the other
  CHECK(static_cast<double>(counts[0]) == Approx(0.03 * 0.3 * 64 * 1.25e9 / 1'711'250).epsilon(0.25));
}

TEST_CASE("make__says_what_cannot_be", "[net]") {
  CHECK(refusal({}).find("nothing to simulate") != std::string::npos);
  Scenario s = one_job("alexnet", 65, 1);
  CHECK(refusal(s).find("more than the 64 hosts") != std::string::npos);
  s = one_job("lenet", 2, 1);
  CHECK(refusal(s).find("no model 'lenet'") != std::string::npos);
  s = one_job("alexnet", 2, 1);
  s.window = 48;
  CHECK(refusal(s).find("power of two") != std::string::npos);
  s = one_job("alexnet", 2, 1);
  s.trees = 17;
  CHECK(refusal(s).find("1 to 16 trees") != std::string::npos);
  s = one_job("alexnet", 2, 1);
  s.sizes = "uniform";
  CHECK(refusal(s).find("no distribution") != std::string::npos);
  s = one_job("alexnet", 65, 1);
  s.shape = {.hosts = 65, .hosts_per_leaf = 65};
  CHECK(refusal(s).find("65 children") != std::string::npos);
  s = one_job("alexnet", 1, 1);
  s.jobs[0].compute = 0;
  CHECK(refusal(s).empty());
  s.reduction = Reduction::kRing;
  CHECK(refusal(s).find("takes no time") != std::string::npos);
  s = {};
  s.load = 0.5;
  CHECK(refusal(s).find("--time") != std::string::npos);
}
