// Simulation: one run. It hands each event to the part that it concerns.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "experiments/net/flows.h"
#include "experiments/net/jobs.h"
#include "experiments/net/rings.h"
#include "experiments/net/scenario.h"
#include "experiments/net/trees.h"
#include "experiments/net/workers.h"

namespace gatun::net {

class Simulation {
 public:
  // Error: the scenario cannot be, and why.
  static Result<std::unique_ptr<Simulation>> make(const Scenario& scenario);

  // Handles up to so many events; false: there are no more.
  bool step(uint64_t events);
  double progress() const;  // 0 to 1, roughly
  Report report() const;    // once step() has returned false
  const Network& network() const { return network_; }

 private:
  Simulation(const Scenario& scenario, Topology topology, const Sizes& sizes, std::vector<JobSpec> jobs);
  Status add_jobs();
  Status add_trees(uint32_t job);
  void add_ring(const JobSpec& job);
  void on_packet(uint32_t port);
  void on_reduced(uint32_t rank);
  void on_computed(uint32_t rank);
  void end_if_due();

  Scenario scenario_;
  Topology topology_;
  Network network_;
  Flows flows_;
  Trees trees_;
  Workers workers_;
  Rings rings_;
  Jobs jobs_;
  ShortFlows short_flows_;
  TimePs arrivals_end_ = 0;  // 0: they go on
};

}  // namespace gatun::net
