#include <algorithm>
#include <catch2/catch.hpp>

#include "experiments/net/workload.h"

using namespace gatun;
using namespace gatun::net;

TEST_CASE("sizes__means_are_the_published_ones", "[net]") {
  CHECK(find_sizes("web-search")->mean() == Approx(1'711'250));
  CHECK(find_sizes("data-mining")->mean() == Approx(12'658'199));
  CHECK(find_sizes("hadoop")->mean() == Approx(120'421).epsilon(0.001));
  CHECK(find_sizes("storage")->mean() == Approx(40'870).epsilon(0.001));
  CHECK(find_sizes("none") == nullptr);
  CHECK(find_model("vgg16")->parameters == 138'357'544);
  CHECK(find_model("vgg") == nullptr);
}

TEST_CASE("draw__follows_the_distribution", "[net]") {
  for (const Sizes& sizes : size_distributions()) {
    sim::Stream random(3, sim::Draw::kNetFlow);
    constexpr int kDraws = 400'000;
    double sum = 0;
    uint32_t below = 0;
    const SizePoint middle = sizes.points[sizes.points.size() / 2];
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t bytes = sizes.draw(random);
      REQUIRE((bytes >= 1 && bytes <= sizes.points.back().bytes));
      sum += static_cast<double>(bytes);
      below += bytes <= middle.bytes;
    }
    CHECK(sum / kDraws == Approx(sizes.mean()).epsilon(0.03));
    CHECK(below / double{kDraws} == Approx(middle.per_100k / 1e5).epsilon(0.01));
  }
}

TEST_CASE("draw_exponential__has_its_mean_and_its_tail", "[net]") {
  sim::Stream random(4, sim::Draw::kNetFlow);
  constexpr int kDraws = 400'000;
  double sum = 0;
  int beyond_one = 0, beyond_three = 0;
  for (int i = 0; i < kDraws; ++i) {
    const TimePs t = draw_exponential(random, 1'000'000);
    sum += static_cast<double>(t);
    beyond_one += t > 1'000'000;
    beyond_three += t > 3'000'000;
  }
  CHECK(sum / kDraws == Approx(1e6).epsilon(0.01));
  CHECK(beyond_one / double{kDraws} == Approx(0.3679).epsilon(0.01));
  CHECK(beyond_three / double{kDraws} == Approx(0.0498).epsilon(0.03));
}

TEST_CASE("host_order__spread_packed_and_random", "[net]") {
  const Topology topology = std::move(Topology::leaf_spine({.hosts = 12, .hosts_per_leaf = 4}).value());
  CHECK(host_order(topology, Placement::kSpread, 1) == std::vector<uint32_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  std::vector<uint32_t> all = host_order(topology, Placement::kPacked, 1);
  CHECK(all == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  std::vector<uint32_t> any = host_order(topology, Placement::kRandom, 1);
  CHECK(any != all);
  CHECK(any != host_order(topology, Placement::kRandom, 2));
  CHECK(any == host_order(topology, Placement::kRandom, 1));
  std::sort(any.begin(), any.end());
  CHECK(any == all);
}
