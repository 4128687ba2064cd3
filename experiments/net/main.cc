// gatun-sim-net: runs the packet-level simulation. `gatun sim net` is this program.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "experiments/net/options.h"
#include "experiments/net/report.h"
#include "experiments/net/simulation.h"

namespace gatun::net {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void show_progress(const std::string& name, const Simulation& simulation, double wall_s) {
  const double done = simulation.progress();
  const auto events = static_cast<double>(simulation.network().events());
  std::fprintf(stderr, "\r\033[K%s%3.0f %%, %.1f ms simulated, %.1f million events a second", name.c_str(), 100 * done,
               to_ms(simulation.network().now()), events / wall_s / 1e6);
  if (done > 0.01) std::fprintf(stderr, ", %.0f s left", wall_s * (1 - done) / done);
}

bool run(const std::string& name, const Scenario& scenario, Report* report) {
  constexpr uint64_t kEvents = 1u << 18;  // between two looks at the clock
  constexpr double kPause = 0.3;
  Result<std::unique_ptr<Simulation>> made = Simulation::make(scenario);
  if (!made.ok()) {
    std::fprintf(stderr, "gatun sim net: %s\n", made.status().message());
    return false;
  }
  Simulation& simulation = *made.value();
  const bool progress = isatty(STDERR_FILENO);
  const Clock::time_point begin = Clock::now();
  double shown = 0;
  while (simulation.step(kEvents)) {
    const double wall_s = seconds_since(begin);
    if (!progress || wall_s - shown < kPause) continue;
    shown = wall_s;
    show_progress(name, simulation, wall_s);
  }
  if (shown > 0) std::fprintf(stderr, "\r\033[K");
  *report = simulation.report();
  report->wall_s = seconds_since(begin);
  return true;
}

// Every row sees the same short flows: they arrive for as long as the ring's jobs take.
int compare(const Options& options) {
  std::vector<Row> rows;
  Scenario next = options.scenario;
  const auto add = [&](const char* name, Reduction reduction, uint32_t trees, Trees::Roots roots, bool congestion_control) {
    next.reduction = reduction;
    next.trees = trees;
    next.roots = roots;
    next.congestion_control = congestion_control;
    rows.push_back({.name = name, .scenario = next});
    if (!run(std::string(name) + " ", next, &rows.back().report)) return false;
    next.time = std::max(next.time, rows.front().report.arrivals_end);
    return true;
  };
  const uint32_t trees = options.scenario.trees;
  const bool ran = add("ring", Reduction::kRing, trees, Trees::Roots::kInTurn, true) &&
                   add("single tree", Reduction::kTrees, 1, Trees::Roots::kInTurn, true) &&
                   add("ecmp", Reduction::kTrees, 1, Trees::Roots::kByHash, true) &&
                   add("no cc", Reduction::kTrees, trees, Trees::Roots::kInTurn, false) &&
                   add("panama", Reduction::kTrees, trees, Trees::Roots::kInTurn, true);
  if (!ran) return 2;
  if (options.json) {
    std::printf("%s\n", json(rows).c_str());
  } else {
    print(rows);
  }
  return 0;
}

int main(int argc, char** argv) {
  Options options;
  if (const int code = parse(argc, argv, &options); code != 0) return code - 1;
  if (options.compare) return compare(options);
  Report report;
  if (!run("", options.scenario, &report)) return 2;
  if (options.json) {
    std::printf("%s\n", json(options.scenario, report).c_str());
  } else {
    print(report);
  }
  return 0;
}

}  // namespace
}  // namespace gatun::net

int main(int argc, char** argv) {
  return gatun::net::main(argc, argv);
}
