#include "experiments/net/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace gatun::net {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBinNames[ShortFlows::kBins] = {"< 100 KB", "100 KB - 10 MB", "> 10 MB"};

struct Ratio {
  std::string name;
  double value;
};

// How many times less the row takes.
std::vector<Ratio> ratios(const Report& peer, const Report& row) {
  std::vector<Ratio> all;
  const auto add = [&](const char* name, double of_peer, double of_row) {
    if (of_peer > 0 && of_row > 0) all.push_back({name, of_peer / of_row});
  };
  add("job time", peer.job_ms, row.job_ms);
  add("mean of flows < 100 KB", peer.flows[0].mean, row.flows[0].mean);
  add("p99 of flows < 100 KB", peer.flows[0].p99, row.flows[0].p99);
  return all;
}

std::string hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

Json json_of(const Times& t) {
  return {{"count", t.count}, {"mean_ms", t.mean}, {"median_ms", t.median}, {"p99_ms", t.p99}};
}

Json json_of(const Scenario& s) {
  return {{"topology", s.topology},
          {"hosts", s.shape.hosts},
          {"over_subscription", s.shape.over_subscription},
          {"gbps", s.shape.gbps},
          {"mtu", s.mtu},
          {"reduction", s.reduction == Reduction::kTrees ? "trees" : "ring"},
          {"trees", s.trees},
          {"window", s.window},
          {"congestion_control", s.congestion_control},
          {"scale", s.scale},
          {"iterations", s.iterations},
          {"flows", s.ecn ? "dctcp" : "tcp"},
          {"sizes", s.sizes},
          {"load", s.load},
          {"seed", s.seed}};
}

Json json_of(const Report& r) {
  Json jobs = Json::array(), flows = Json::object();
  for (const JobReport& job : r.jobs) {
    jobs.push_back({{"model", job.model},
                    {"ranks", job.ranks},
                    {"iterations", job.iterations},
                    {"iteration_ms", job.iteration_ms},
                    {"all_reduce_ms", job.all_reduce_ms},
                    {"job_ms", job.job_ms}});
  }
  for (uint32_t bin = 0; bin < ShortFlows::kBins; ++bin) flows[kBinNames[bin]] = json_of(r.flows[bin]);
  return {{"jobs", jobs},
          {"iteration_ms", r.iteration_ms},
          {"job_ms", r.job_ms},
          {"flows", flows},
          {"packets", r.packets},
          {"marks", r.marks},
          {"losses", r.losses},
          {"resent", r.resent},
          {"statuses", r.statuses},
          {"chunks", r.chunks},
          {"chunks_marked", r.chunks_marked},
          {"queue_bytes", {{"mean", r.queue_mean}, {"p99", r.queue_p99}, {"max", r.queue_max}}},
          {"imbalance", r.imbalance},
          {"arrivals_ms", to_ms(r.arrivals_end)},
          {"simulated_ms", to_ms(r.end)},
          {"events", r.events},
          {"events_per_s", r.events_per_s()},
          {"trace", hex(r.hash)}};
}

}  // namespace

void print(const Report& r) {
  if (!r.jobs.empty()) {
    std::printf("%-12s %6s %11s %14s %14s %12s\n", "job", "ranks", "iterations", "iteration ms", "all-reduce ms", "job ms");
  }
  for (const JobReport& job : r.jobs) {
    std::printf("%-12s %6u %11llu %14.3f %14.3f %12.3f\n", job.model.c_str(), job.ranks,
                static_cast<unsigned long long>(job.iterations), job.iteration_ms, job.all_reduce_ms, job.job_ms);
  }
  if (r.jobs.size() > 1) std::printf("%-12s %6s %11s %14.3f %14s %12.3f\n", "mean", "", "", r.iteration_ms, "", r.job_ms);
  uint64_t flows = 0;
  for (const Times& times : r.flows) flows += times.count;
  if (flows > 0) {
    std::printf("\n%-16s %10s %12s %12s %12s\n", "short flows", "count", "mean ms", "median ms", "p99 ms");
    for (uint32_t bin = 0; bin < ShortFlows::kBins; ++bin) {
      const Times& t = r.flows[bin];
      std::printf("%-16s %10llu %12.4f %12.4f %12.4f\n", kBinNames[bin], static_cast<unsigned long long>(t.count), t.mean,
                  t.median, t.p99);
    }
  }
  const auto n = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("\npackets %llu, marked %.2f %%, lost %llu, repeated %llu, statuses %llu\n", n(r.packets), 100 * r.marked(),
              n(r.losses), n(r.resent), n(r.statuses));
  if (r.chunks > 0) {
    std::printf("chunks %llu, answered with a mark %.2f %%\n", n(r.chunks),
                100 * static_cast<double>(r.chunks_marked) / static_cast<double>(r.chunks));
  }
  std::printf(
      "queues at switches: mean %.1f KB, p99 %.1f KB, most %.1f KB; busiest link up from a leaf %.2f times the mean\n",
      r.queue_mean / 1e3, static_cast<double>(r.queue_p99) / 1e3, static_cast<double>(r.queue_max) / 1e3, r.imbalance);
  std::printf("%.3f ms simulated, %llu events, %.2f million a second, trace %s\n", to_ms(r.end), n(r.events),
              r.events_per_s() / 1e6, hex(r.hash).c_str());
}

void print(const std::vector<Row>& rows) {
  std::printf("%-12s %12s %12s | %-34s | %-34s | %8s %9s %8s %9s\n", "", "", "", "   flows < 100 KB, ms",
              "   100 KB - 10 MB, ms", "", "", "queue", "");
  std::printf("%-12s %12s %12s | %10s %11s %11s | %10s %11s %11s | %8s %9s %8s %9s\n", "", "iteration ms", "job ms", "mean",
              "median", "p99", "mean", "median", "p99", "marked", "lost", "p99 KB", "imbalance");
  for (const Row& row : rows) {
    const Report& r = row.report;
    std::printf("%-12s %12.3f %12.3f |", row.name.c_str(), r.iteration_ms, r.job_ms);
    for (int bin = 0; bin < 2; ++bin) {
      std::printf(" %10.4f %11.4f %11.4f |", r.flows[bin].mean, r.flows[bin].median, r.flows[bin].p99);
    }
    std::printf(" %6.2f %% %9llu %8.1f %9.2f\n", 100 * r.marked(), static_cast<unsigned long long>(r.losses),
                static_cast<double>(r.queue_p99) / 1e3, r.imbalance);
  }
  std::printf("\ntimes less than with %s:\n", rows.front().name.c_str());
  Ratio worst{.value = 0};
  for (size_t i = 1; i < rows.size(); ++i) {
    std::printf("%-12s", rows[i].name.c_str());
    for (const Ratio& ratio : ratios(rows.front().report, rows[i].report)) {
      std::printf("  %s %.2f", ratio.name.c_str(), ratio.value);
      if (i + 1 == rows.size() && (worst.value == 0 || ratio.value < worst.value)) worst = ratio;
    }
    std::printf("\n");
  }
  std::printf("worst ratio: %.2f (%s, %s)\n", worst.value, rows.back().name.c_str(), worst.name.c_str());
}

std::string json(const Scenario& scenario, const Report& report) {
  return Json{{"scenario", json_of(scenario)}, {"report", json_of(report)}}.dump(2);
}

std::string json(const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const Row& row : rows) {
    Json entry = {{"name", row.name}, {"scenario", json_of(row.scenario)}, {"report", json_of(row.report)}};
    for (const Ratio& ratio : ratios(rows.front().report, row.report)) entry["ratios"][ratio.name] = ratio.value;
    all.push_back(std::move(entry));
  }
  return all.dump(2);
}

}  // namespace gatun::net
