#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>

#include "experiments/net/topology.h"
#include "experiments/net/trees.h"
#include "tests/sim/rng.h"

using namespace gatun;
using namespace gatun::net;

namespace {

// Follows the ports from a switch to a host; the hops it took.
uint32_t walk(const Topology& topology, uint32_t at, uint32_t host, uint32_t hash) {
  uint32_t hops = 0;
  for (; at != host && hops < 20; ++hops) at = topology.to(topology.route(at, host, hash));
  return hops;
}

void check_routes(const Topology& topology) {
  for (uint32_t at = topology.hosts(); at < topology.devices(); ++at) {
    for (uint32_t host = 0; host < topology.hosts(); ++host) {
      REQUIRE(walk(topology, at, host, at * 7919 + host) == topology.hops(at, topology.leaf(host)) + 1);
    }
  }
}

std::string sentence(const Shape& shape, Result<Topology> (*make)(const Shape&)) {
  Result<Topology> made = make(shape);
  return made.ok() ? "" : made.status().message();
}

Result<Topology> read_text(const std::string& text) {
  const std::string path = "net_topology_test." + std::to_string(getpid()) + ".json";
  std::ofstream(path) << text;
  Result<Topology> read = Topology::read(path, {});
  std::remove(path.c_str());
  return read;
}

}  // namespace

TEST_CASE("leaf_spine__over_subscription_decides_the_links_up", "[net]") {
  for (const uint32_t over : {1u, 2u, 4u}) {
    Result<Topology> made = Topology::leaf_spine({.hosts = 64, .hosts_per_leaf = 16, .over_subscription = over});
    REQUIRE(made.ok());
    CHECK(made->devices() == 64 + 4 + 16 / over);
    CHECK(made->links().size() == 64 + 4 * 16 / over);
    check_routes(made.value());
  }
  CHECK(sentence({.hosts = 65}, Topology::leaf_spine).find("65 hosts do not fill leaves of 16") != std::string::npos);
  CHECK(sentence({.over_subscription = 3}, Topology::leaf_spine).find("--spines") != std::string::npos);
  CHECK(sentence({.gbps = 30, .fabric_gbps = 30}, Topology::leaf_spine).find("divides 8000") != std::string::npos);
}

TEST_CASE("clos3__pods_meet_in_the_cores", "[net]") {
  const Shape shape{.hosts = 128, .hosts_per_leaf = 8, .leaves_per_pod = 4, .over_subscription = 2};
  Result<Topology> made = Topology::clos3(shape);
  REQUIRE(made.ok());
  const Topology& topology = made.value();
  CHECK(topology.devices() == 128 + 16 + 4 * 4 + 4 * 4);
  CHECK(topology.hops(topology.leaf(0), topology.leaf(31)) == 2);
  CHECK(topology.hops(topology.leaf(0), topology.leaf(127)) == 4);
  check_routes(topology);
  const uint32_t one_leaf[] = {0, 7}, one_pod[] = {0, 31}, all[] = {0, 40, 127};
  CHECK(Trees::roots(topology, one_leaf) == std::vector<uint32_t>{topology.leaf(0)});
  CHECK(Trees::roots(topology, one_pod).size() == 4);
  CHECK(Trees::roots(topology, all).size() == 16);
  CHECK(sentence({.hosts = 48}, Topology::clos3).find("pods of 4") != std::string::npos);
}

TEST_CASE("read__hosts_links_and_what_is_wrong", "[net]") {
  Result<Topology> chain = read_text(R"({"hosts": ["a", "b"], "links": [{"ends": ["a", "s"], "gbps": 25},
      {"ends": ["t", "b"], "delay_us": 0.5}, {"ends": ["s", "t"]}]})");
  REQUIRE(chain.ok());
  CHECK(chain->hosts() == 2);
  CHECK(chain->devices() == 4);
  CHECK(chain->links()[0].gbps == 25);
  CHECK(chain->links()[1].delay == kPsPerUs / 2);
  CHECK(chain->links()[2].gbps == 10);
  check_routes(chain.value());
  const auto complaint = [](const char* text) { return std::string(read_text(text).status().message()); };
  CHECK(complaint("{").find("is no topology") != std::string::npos);
  CHECK(complaint(R"({"hosts": ["a", "a"], "links": []})").find("twice") != std::string::npos);
  CHECK(complaint(R"({"hosts": ["a", "b"], "links": [{"ends": ["a", "s"]}]})").find("one link") != std::string::npos);
  CHECK(complaint(R"({"hosts": ["a"], "links": [{"ends": ["a"]}]})").find("two ends") != std::string::npos);
  CHECK(complaint(R"({"hosts": ["a", "b"], "links": [{"ends": ["a", "s"]}, {"ends": ["b", "t"]}]})").find("not connected") !=
        std::string::npos);
  CHECK_FALSE(Topology::read("/nowhere.json", {}).ok());
}

TEST_CASE("pick__spreads_hashes_evenly", "[net]") {
  const uint32_t ports[] = {0, 1, 2, 3, 4, 5, 6, 7};
  uint32_t counts[8] = {};
  for (uint32_t hash = 0; hash < 80000; ++hash) ++counts[Topology::pick(ports, 70, static_cast<uint32_t>(sim::mix(hash)))];
  for (const uint32_t count : counts) CHECK((count > 9500 && count < 10500));
}
