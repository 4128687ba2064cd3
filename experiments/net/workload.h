// Workload: what runs on the network. Sizes of short flows from public distributions, models by the size of their gradients,
// and which hosts a job gets.
//
// Draws are integers throughout, so a seed means the same on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/net/flows.h"
#include "experiments/net/topology.h"
#include "tests/sim/rng.h"

namespace gatun::net {

struct Model {
  std::string_view name;
  uint64_t parameters;
  uint32_t compute_ms;  // of an iteration, unless the job says it
};
std::span<const Model> models();
const Model* find_model(std::string_view name);  // null: there is none

// A distribution function: points between which it is linear.
struct SizePoint {
  uint64_t bytes;
  uint32_t per_100k;  // of the flows are not larger
};
struct Sizes {
  std::string_view name;
  std::span<const SizePoint> points;
  double mean() const;
  uint64_t draw(sim::Stream& random) const;
};
std::span<const Sizes> size_distributions();
const Sizes* find_sizes(std::string_view name);

// Exponential with this mean.
TimePs draw_exponential(sim::Stream& random, TimePs mean);

enum class Placement : uint8_t { kSpread, kPacked, kRandom };
// All hosts in the order in which jobs take them: leaf by leaf in turn, leaf after leaf, or anyhow.
std::vector<uint32_t> host_order(const Topology& topology, Placement placement, uint64_t seed);

// Short flows between any two hosts, as a Poisson process, and how long they took.
class ShortFlows {
 public:
  static constexpr uint32_t kBins = 3;
  static constexpr uint64_t kBinEnds[kBins] = {100'000, 10'000'000, UINT64_MAX};

  ShortFlows(Network& network, Flows& flows, const Sizes& sizes, double load, uint64_t seed);
  void on_due();  // EventKind::kShortFlow
  void on_complete(uint32_t flow);
  const std::vector<TimePs>& times(uint32_t bin) const { return times_[bin]; }

 private:
  void arrange_next();

  Network& network_;
  Flows& flows_;
  const Sizes& sizes_;
  TimePs interval_;
  sim::Stream random_;
  std::vector<TimePs> times_[kBins];
};

}  // namespace gatun::net
