#include "tests/chaos/summary.h"

#include <algorithm>
#include <cstdio>

namespace gatun::chaos {
namespace {

void print_row(const char* kind, const char* detect, std::vector<std::pair<TimeNs, uint64_t>> times) {
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  const auto ms = [&](double share) {
    const auto at = static_cast<size_t>(share * static_cast<double>(times.size()));
    return static_cast<double>(times[std::min(at, times.size() - 1)].first) / 1e6;
  };
  std::printf("  %-18s %-8s %6zu %8.0f %8.0f %8.0f   %llu\n", kind, detect, times.size(), ms(0.5), ms(0.9), ms(1),
              static_cast<unsigned long long>(times.back().second));
}

void print_seeds(const char* what, const std::vector<uint64_t>& seeds) {
  if (seeds.empty()) return;
  std::printf("%s:", what);
  for (const uint64_t seed : seeds) std::printf(" %llu", static_cast<unsigned long long>(seed));
  std::printf("\n");
}

}  // namespace

void Summary::add(const Plan& plan, const Board& board, End end) {
  ++rounds_;
  lossy_ += plan.lossy;
  if (end == End::kWrong) wrong_.push_back(plan.seed);
  if (end == End::kHang) hangs_.push_back(plan.seed);
  for (const Fault fault : plan.faults) ++faults_[static_cast<size_t>(fault)];
  TimeNs longest = 0, destroy = 0;
  uint64_t failovers = 0;
  for (const RankBoard& rank : board.ranks) {
    longest = std::max(longest, rank.longest);
    destroy = std::max(destroy, rank.destroy);
    failovers = std::max(failovers, rank.failovers);
    operations_ += rank.operations;
    ring_operations_ += rank.ring_operations;
  }
  failovers_ += failovers;
  destroy_.emplace_back(destroy, plan.seed);
  if (plan.faults.size() != 1 || plan.lossy || end != End::kRight) return;  // lost packets make operations long as well
  auto& times = plan.detect_ms == 0 ? longest_ : longest_quick_;
  times[static_cast<size_t>(plan.faults.front())].emplace_back(longest, plan.seed);
}

void Summary::print(const std::string& cannot_cut, uint32_t skipped) const {
  std::printf("\n%u rounds, %u of them with loss, duplication, reordering and corruption; failovers: %llu\n", rounds_,
              lossy_, static_cast<unsigned long long>(failovers_));
  std::printf("operations of all ranks: %llu, of them %llu without the switch\nfaults:",
              static_cast<unsigned long long>(operations_), static_cast<unsigned long long>(ring_operations_));
  for (int fault = 1; fault < kFaults; ++fault) {
    std::printf("%s %s %u", fault == 1 ? "" : ",", name(static_cast<Fault>(fault)), faults_[static_cast<size_t>(fault)]);
  }
  std::printf("\n");
  if (!cannot_cut.empty()) {
    std::printf("[skipped] rounds with cuts (%u rounds): %s\n", skipped, cannot_cut.c_str());
  }
  std::printf("longest operation of a round without loss, by its only fault, in ms:\n");
  std::printf("  %-18s %-8s %6s %8s %8s %8s   %s\n", "fault", "detect", "rounds", "median", "90 %", "most", "seed");
  for (int fault = 0; fault < kFaults; ++fault) {
    print_row(name(static_cast<Fault>(fault)), "default", longest_[static_cast<size_t>(fault)]);
    print_row(name(static_cast<Fault>(fault)), "10-200", longest_quick_[static_cast<size_t>(fault)]);
  }
  print_row("any: destruction", "any", destroy_);
  print_seeds("wrong seeds", wrong_);
  print_seeds("hanging seeds", hangs_);
  std::printf("wrong: %zu hangs: %zu rounds: %u\n", wrong_.size(), hangs_.size(), rounds_);
}

}  // namespace gatun::chaos
