#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <map>

#include "switch_model/daemon/metrics.h"

namespace gatun {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr TimeNs kMissingMin = 100 * kMs;  // ranks are never quite together; this is longer than a lost packet takes

double seconds(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kSecond);
}

class Families {
 public:
  void begin(const char* name, MetricType type, const char* help) {
    families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
  }
  void add(Labels labels, double value) {
    ClientMetric& metric = start(std::move(labels));
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  void add(Labels labels, uint64_t value) { add(std::move(labels), static_cast<double>(value)); }
  void add_sum(Labels labels, uint64_t count, double sum) {
    ClientMetric& metric = start(std::move(labels));
    metric.summary.sample_count = count;
    metric.summary.sample_sum = sum;
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  ClientMetric& start(Labels labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }
  std::vector<MetricFamily> families_;
};

void add_daemon(const Snapshot& snapshot, Families* out) {
  out->begin("gatun_build_info", MetricType::Gauge, "Always 1; the version is the label");
  out->add({{"version", GATUN_VERSION_TEXT}}, uint64_t{1});
  out->begin("gatun_jobs", MetricType::Gauge, "Jobs by state");
  std::map<Snapshot::State, uint64_t> states = {{Snapshot::kJoining, 0}, {Snapshot::kRunning, 0}, {Snapshot::kStalled, 0}};
  for (const Snapshot::Job& job : snapshot.jobs) ++states[job.state];
  out->add({{"state", "joining"}}, states[Snapshot::kJoining]);
  out->add({{"state", "running"}}, states[Snapshot::kRunning]);
  out->add({{"state", "stalled"}}, states[Snapshot::kStalled]);
  out->begin("gatun_memory_bytes", MetricType::Gauge, "Memory granted to jobs");
  out->add({}, snapshot.memory_bytes);
  out->begin("gatun_control_connections", MetricType::Gauge, "Open connections of the control channel");
  out->add({}, snapshot.connections);
  out->begin("gatun_refusals_total", MetricType::Counter, "Ranks that were refused");
  out->add({}, snapshot.refusals);
}

void add_lanes(const Snapshot& snapshot, Families* out) {
  const auto each = [&](auto add) {
    for (size_t i = 0; i < snapshot.lanes.size(); ++i) add(snapshot.lanes[i], std::to_string(i));
  };
  out->begin("gatun_lane_busy_seconds_total", MetricType::Counter, "Time in turns of the lane that found packets");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, seconds(static_cast<uint64_t>(lane.busy_ns))); });
  out->begin("gatun_lane_sleeps_total", MetricType::Counter, "Times that the lane found nothing and slept");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, lane.sleeps); });
  out->begin("gatun_lane_trees", MetricType::Gauge, "Aggregation trees on the lane");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, uint64_t{lane.trees}); });
  out->begin("gatun_packets_received_total", MetricType::Counter, "Packets received, by kind");
  each([&](const auto& lane, auto name) {
    out->add({{"lane", name}, {"kind", "data"}}, lane.node.data);
    out->add({{"lane", name}, {"kind", "result"}}, lane.node.results);
    out->add({{"lane", name}, {"kind", "probe"}}, lane.node.probes);
  });
  out->begin("gatun_packets_sent_total", MetricType::Counter, "Packets sent, by kind; partial: to a parent switch");
  each([&](const auto& lane, auto name) {
    out->add({{"lane", name}, {"kind", "result"}}, lane.node.sent_results);
    out->add({{"lane", name}, {"kind", "partial"}}, lane.node.sent_partials);
    out->add({{"lane", name}, {"kind", "status"}}, lane.node.statuses);
    out->add({{"lane", name}, {"kind", "probe_reply"}}, lane.node.probes);
  });
  out->begin("gatun_bytes_received_total", MetricType::Counter, "Bytes received with Gatun's header");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, lane.transport.bytes_received); });
  out->begin("gatun_bytes_sent_total", MetricType::Counter, "Bytes sent with Gatun's header");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, lane.transport.bytes_sent); });
  out->begin("gatun_congested_packets_total", MetricType::Counter, "Packets received with a congestion mark (CE)");
  each([&](const auto& lane, auto name) { out->add({{"lane", name}}, lane.transport.congested); });
  out->begin("gatun_drops_total", MetricType::Counter, "Packets dropped, by reason");
  each([&](const auto& lane, auto name) {
    const std::pair<const char*, uint64_t> reasons[] = {{"malformed", lane.node.dropped_malformed},
                                                        {"checksum", lane.node.dropped_checksum},
                                                        {"foreign", lane.node.dropped_foreign + lane.dropped_foreign},
                                                        {"stale", lane.node.dropped_stale},
                                                        {"unexpected", lane.node.dropped_unexpected},
                                                        {"runt", lane.transport.dropped_runt},
                                                        {"invalid", lane.transport.dropped_invalid},
                                                        {"no_buffer", lane.transport.dropped_no_buffer},
                                                        {"unsent", lane.transport.dropped_send + lane.dropped_unsent}};
    for (const auto& [reason, count] : reasons) out->add({{"lane", name}, {"reason", reason}}, count);
  });
}

void add_jobs(const Snapshot& snapshot, Families* out) {
  const auto family = [&](const char* name, MetricType type, const char* help, auto value) {
    out->begin(name, type, help);
    for (const Snapshot::Job& job : snapshot.jobs) out->add({{"job", job.name}}, static_cast<double>(value(job)));
  };
  using Job = Snapshot::Job;
  const auto gauge = MetricType::Gauge, counter = MetricType::Counter;
  family("gatun_job_ranks", gauge, "Ranks of the job", [](const Job& job) { return job.ranks; });
  family("gatun_job_joined", gauge, "Ranks that are here", [](const Job& job) { return job.joined; });
  family("gatun_job_stalled", gauge, "1 while a chunk has waited for a rank longer than the setting stall_warning",
         [](const Job& job) { return job.state == Snapshot::kStalled; });
  family("gatun_job_waiting_seconds", gauge, "How long the oldest open chunk has waited for a rank",
         [](const Job& job) { return seconds(static_cast<uint64_t>(job.waited)); });
  out->begin("gatun_job_missing_seconds", gauge, "The ranks that it waits for, and how long; only those late by 0.1 s");
  for (const Job& job : snapshot.jobs) {
    if (job.waited < kMissingMin) continue;
    for (const uint32_t rank : job.missing) {
      out->add({{"job", job.name}, {"rank", std::to_string(rank)}}, seconds(static_cast<uint64_t>(job.waited)));
    }
  }
  family("gatun_job_memory_bytes", gauge, "Memory granted to the job", [](const Job& job) { return job.memory_bytes; });
  family("gatun_job_trees", gauge, "Aggregation trees of the job", [](const Job& job) { return job.trees; });
  family("gatun_job_banks", gauge, "Banks granted, two per slot", [](const Job& job) { return job.banks; });
  family("gatun_job_open_banks", gauge, "Banks whose chunk is not complete", [](const Job& job) { return job.open; });
  family("gatun_job_operations_total", counter, "Operations begun", [](const Job& job) { return job.stats.operations; });
  family("gatun_job_contributions_total", counter, "Contributions of its ranks, repeats included",
         [](const Job& job) { return job.stats.contributions; });
  family("gatun_job_chunks_total", counter, "Chunks completed", [](const Job& job) { return job.stats.chunks; });
  family("gatun_job_marked_chunks_total", counter, "Chunks whose result carried a congestion mark",
         [](const Job& job) { return job.stats.marked; });
  family("gatun_job_reduced_bytes_total", counter, "Bytes of results",
         [](const Job& job) { return job.stats.reduced_bytes; });
  family("gatun_job_repeats_total", counter, "Answers that were sent again",
         [](const Job& job) { return job.stats.repeats; });
  family("gatun_job_status_answers_total", counter, "Repeats that were answered with who is missing",
         [](const Job& job) { return job.stats.statuses; });
  family("gatun_job_refused_chunks_total", counter, "Chunks refused because ranks called different operations",
         [](const Job& job) { return job.stats.refusals; });
  family("gatun_job_failovers_total", counter, "Times that the job has gone on without a switch, here or before it came",
         [](const Job& job) { return job.failovers; });
  family("gatun_job_stalls_total", counter, "Times that a rank asked why its operation waits",
         [](const Job& job) { return job.stalls; });
  out->begin("gatun_job_reduce_seconds", MetricType::Summary, "Time to reduce a chunk with payload");
  for (const Job& job : snapshot.jobs) {
    out->add_sum({{"job", job.name}}, job.stats.reduced_chunks, seconds(job.stats.reduce_ns));
  }
}

}  // namespace

const char* why_no_metrics() {
  return nullptr;
}

std::string metrics_text(const Snapshot& snapshot) {
  Families families;
  add_daemon(snapshot, &families);
  add_lanes(snapshot, &families);
  add_jobs(snapshot, &families);
  return families.text();
}

}  // namespace gatun
