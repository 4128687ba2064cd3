#include "experiments/net/workload.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace gatun::net {
namespace {

// Parameters are counted from the architectures. Times of an iteration: TensorFlow's benchmarks of May 2017 on one P100
// (batch 512, 64 and 64); for the last two no measured figure is at hand, and these are assumptions.
constexpr Model kModels[] = {
    {"alexnet", 61'100'840, 171},     {"vgg16", 138'357'544, 416}, {"resnet50", 25'557'032, 292},
    {"bert-large", 335'141'888, 600}, {"gpt2", 124'439'808, 300},
};

// DCTCP (SIGCOMM 2010), VL2 (SIGCOMM 2009), Facebook's Hadoop cluster (SIGCOMM 2015) and Alibaba's storage (2019), as
// published with HPCC and PIAS.
// clang-format off
constexpr SizePoint kWebSearch[] = {
    {0, 0}, {10'000, 15'000}, {20'000, 20'000}, {30'000, 30'000}, {50'000, 40'000}, {80'000, 53'000}, {200'000, 60'000},
    {1'000'000, 70'000}, {2'000'000, 80'000}, {5'000'000, 90'000}, {10'000'000, 97'000}, {30'000'000, 100'000}};
constexpr SizePoint kDataMining[] = {
    {0, 0}, {180, 10'000}, {216, 20'000}, {560, 30'000}, {900, 40'000}, {1'100, 50'000}, {1'870, 60'000}, {3'160, 70'000},
    {10'000, 80'000}, {400'000, 90'000}, {3'160'000, 95'000}, {100'000'000, 98'000}, {1'000'000'000, 100'000}};
constexpr SizePoint kHadoop[] = {
    {0, 0}, {100, 1'000}, {200, 2'000}, {300, 5'000}, {350, 15'000}, {400, 20'000}, {500, 30'000}, {600, 40'000},
    {700, 50'000}, {1'000, 60'000}, {2'000, 67'000}, {7'000, 70'000}, {30'000, 72'000}, {50'000, 82'000}, {80'000, 87'000},
    {120'000, 90'000}, {300'000, 95'000}, {1'000'000, 97'500}, {2'000'000, 99'000}, {10'000'000, 100'000}};
constexpr SizePoint kStorage[] = {
    {0, 0}, {4'000, 22'930}, {8'000, 69'210}, {16'000, 80'610}, {32'000, 90'470}, {64'000, 93'530}, {128'000, 96'770},
    {256'000, 97'530}, {2'000'000, 100'000}};
// clang-format on
constexpr Sizes kSizes[] = {
    {"web-search", kWebSearch}, {"data-mining", kDataMining}, {"hadoop", kHadoop}, {"storage", kStorage}};

constexpr uint64_t kAll = 100'000;

}  // namespace

std::span<const Model> models() {
  return kModels;
}
std::span<const Sizes> size_distributions() {
  return kSizes;
}

const Model* find_model(std::string_view name) {
  const auto* found = std::find_if(std::begin(kModels), std::end(kModels), [&](const Model& m) { return m.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

const Sizes* find_sizes(std::string_view name) {
  const auto* found = std::find_if(std::begin(kSizes), std::end(kSizes), [&](const Sizes& s) { return s.name == name; });
  return found == std::end(kSizes) ? nullptr : found;
}

double Sizes::mean() const {
  double sum = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    const double share = static_cast<double>(points[i].per_100k - points[i - 1].per_100k) / kAll;
    sum += share * static_cast<double>(points[i - 1].bytes + points[i].bytes) / 2;
  }
  return sum;
}

uint64_t Sizes::draw(sim::Stream& random) const {
  constexpr uint64_t kFine = 1u << 20;  // steps between two counts of 100,000
  const uint64_t at = random.below(kAll * kFine);
  size_t i = 1;
  while (points[i].per_100k * kFine <= at) ++i;
  const SizePoint low = points[i - 1], high = points[i];
  const uint64_t into = at - low.per_100k * kFine, width = (high.per_100k - low.per_100k) * kFine;
  const auto more = static_cast<unsigned __int128>(high.bytes - low.bytes) * into / width;
  return std::max<uint64_t>(1, low.bytes + static_cast<uint64_t>(more));
}

// Von Neumann's way (1951), by comparisons alone: the fraction is the first of a falling run of odd length, and the whole
// part is how many runs failed.
TimePs draw_exponential(sim::Stream& random, TimePs mean) {
  for (TimePs whole = 0;; whole += mean) {
    const uint64_t first = random.next();
    uint64_t latest = first, length = 1;
    for (uint64_t next = random.next(); next < latest; next = random.next()) {
      latest = next;
      ++length;
    }
    if (length % 2 == 1) {
      return whole + static_cast<TimePs>((static_cast<unsigned __int128>(first) * static_cast<uint64_t>(mean)) >> 64);
    }
  }
}

std::vector<uint32_t> host_order(const Topology& topology, Placement placement, uint64_t seed) {
  std::vector<uint32_t> hosts(topology.hosts());
  for (uint32_t h = 0; h < hosts.size(); ++h) hosts[h] = h;
  if (placement == Placement::kRandom) {
    sim::Stream random(seed, sim::Draw::kNetJob);
    for (size_t i = hosts.size(); i > 1; --i) std::swap(hosts[i - 1], hosts[random.below(i)]);
    return hosts;
  }
  std::map<uint32_t, uint32_t> taken;  // of each leaf
  std::vector<uint32_t> place(hosts.size());
  for (uint32_t h = 0; h < hosts.size(); ++h) place[h] = taken[topology.leaf(h)]++;
  std::stable_sort(hosts.begin(), hosts.end(), [&](uint32_t a, uint32_t b) {
    const uint32_t x = placement == Placement::kSpread ? place[a] : 0, y = placement == Placement::kSpread ? place[b] : 0;
    return x != y ? x < y : topology.leaf(a) < topology.leaf(b);
  });
  return hosts;
}

ShortFlows::ShortFlows(Network& network, Flows& flows, const Sizes& sizes, double load, uint64_t seed)
    : network_(network), flows_(flows), sizes_(sizes), interval_(0), random_(seed, sim::Draw::kNetFlow) {
  // The load is the share of what the hosts' own links carry.
  double bytes_per_ps = 0;
  const Topology& topology = network.topology();
  for (uint32_t h = 0; h < topology.hosts(); ++h) bytes_per_ps += 1.0 / network.ports()[topology.nic(h)].ps_per_byte;
  if (load > 0) interval_ = std::llround(sizes.mean() / (load * bytes_per_ps));
  if (load > 0) arrange_next();
}

void ShortFlows::arrange_next() {
  network_.at(network_.now() + draw_exponential(random_, interval_), EventKind::kShortFlow, 0);
}

void ShortFlows::on_due() {
  const uint32_t hosts = network_.topology().hosts();
  const auto from = static_cast<uint32_t>(random_.below(hosts));
  auto to = static_cast<uint32_t>(random_.below(hosts - 1));
  to += to >= from;
  flows_.open(from, to, sizes_.draw(random_));
  arrange_next();
}

void ShortFlows::on_complete(uint32_t flow) {
  uint32_t bin = 0;
  while (flows_.bytes(flow) >= kBinEnds[bin]) ++bin;
  times_[bin].push_back(network_.now() - flows_.started(flow));
}

}  // namespace gatun::net
