#include "host/tools/perf/bench.h"

#include <algorithm>
#include <ctime>

namespace gatun::perf {
namespace {

double now_us(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

gatun_stats_t stats_of(gatun_comm_t comm) {
  gatun_stats_t stats{};
  stats.size = sizeof(stats);
  gatun_comm_stats(comm, &stats);
  return stats;
}

// A comparison's plan: each repetition of each contestant lasts about this long.
// A row whose operations are slow has fewer repetitions, at least kRepetitionsMin, to stay within row_us.
struct Pace {
  double repetition_us, row_us;
  int repetitions, iters_max;
};
constexpr Pace kPace = {40'000, 6e6, 9, 2000};
constexpr Pace kQuickPace = {10'000, 2e6, 5, 500};
constexpr int kRepetitionsMin = 3;
constexpr int kPruneAfter = 2;  // repetitions, then variants of a peer that are far behind its best drop out
constexpr double kPruneFactor = 1.5;
constexpr double kHopelessFactor = 8;  // after a single operation

}  // namespace

// Wall time, CPU time and the library's counters between start and stop.
struct Bench::Meter {
  explicit Meter(gatun_comm_t comm) : before(stats_of(comm)) {
    cpu_us = now_us(CLOCK_PROCESS_CPUTIME_ID);
    wall_us = now_us(CLOCK_MONOTONIC);
  }
  void stop(gatun_comm_t comm) {
    wall_us = now_us(CLOCK_MONOTONIC) - wall_us;
    cpu_us = now_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_us;
    const gatun_stats_t after = stats_of(comm);
    wire_bytes = static_cast<double>(
        std::max(after.wire_bytes_sent - before.wire_bytes_sent, after.wire_bytes_received - before.wire_bytes_received));
    resent = static_cast<double>(after.packets_resent - before.packets_resent);
  }
  gatun_stats_t before;
  double wall_us, cpu_us, wire_bytes = 0, resent = 0;
};

struct Bench::Entry {
  Peer* peer = nullptr;  // null: Gatun
  int variant = 0;
  Contestant result;
  bool dropped = false;
  double cpu_us = 0;                  // of the latest timed_us()
  double wire_bytes = 0, resent = 0;  // Gatun's, since choose_pace()
};

Bench::Bench(const Options& options, Group& group, gatun_comm_t comm, std::vector<std::unique_ptr<Peer>>& peers,
             Report* report)
    : options_(options),
      group_(group),
      comm_(comm),
      peers_(peers),
      report_(report),
      workload_(std::max<uint64_t>(options.bytes_max, 64), options.aggregate, options.unalign) {}

double Bench::over(double value, Average how) {
  Spread spread;
  require(over_ranks(group_, value, &spread));
  switch (how) {
    case Average::kRank0: return spread.first;
    case Average::kLeast: return spread.least;
    case Average::kMost: return spread.most;
    case Average::kMean: break;
  }
  return spread.mean;
}

double Bench::sum(double value) {
  Spread spread;
  require(over_ranks(group_, value, &spread));
  return spread.total;
}

void Bench::run() {
  if (options_.registered) require(workload_.enroll(comm_));
  for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
    for (const gatun_type_t type : options_.types) {
      for (const gatun_op_t op : options_.ops) {
        const bool all_roots = options_.root < 0 && has_root(options_.collective);
        const int first = all_roots ? 0 : std::max(options_.root, 0);
        const int last = all_roots ? group_.size() - 1 : first;
        for (int root = first; root <= last; ++root) run_sizes(type, op, root);
      }
    }
  }
}

void Bench::run_sizes(gatun_type_t type, gatun_op_t op, int root) {
  const std::vector<uint64_t> all = sizes(options_);
  const auto shape_of = [&](uint64_t bytes) {
    return make_shape(options_, group_.rank(), group_.size(), type, op, root, bytes);
  };
  warm_up(shape_of(all.back()));
  warm_up(shape_of(all.front()));
  for (const uint64_t bytes : all) {
    const Shape shape = shape_of(bytes);
    if (!peers_.empty()) {
      compare(shape);
      continue;
    }
    const Timing out_of_place = measure(shape, false);
    const Timing in_place = measure(shape, true);
    if (report_ != nullptr) report_->row(shape, out_of_place, in_place);
  }
}

void Bench::run_collective() {
  if (!options_.skip_collective) require(workload_.run(comm_));
}

void Bench::warm_up(const Shape& shape) {
  workload_.set_shape(shape, false);
  workload_.fill(options_.seed);
  for (int i = 0; i < options_.warmup_iters; ++i) run_collective();
}

Timing Bench::measure(const Shape& shape, bool in_place) {
  workload_.set_shape(shape, in_place);
  workload_.fill(options_.seed);
  require(group_.barrier());
  Meter meter(comm_);
  for (int i = 0; i < options_.iters; ++i) {
    run_collective();
    if (options_.blocking) require(group_.barrier());
  }
  meter.stop(comm_);
  const double operations = static_cast<double>(options_.iters) * options_.aggregate;
  Timing timing;
  timing.us = over(meter.wall_us / operations, options_.average);
  timing.cpu_us = over(meter.cpu_us / operations, options_.average);
  timing.wire_bytes = over(meter.wire_bytes / operations, Average::kMean);
  timing.resent = static_cast<uint64_t>(sum(meter.resent));
  timing.wrong = check(shape, in_place);
  timing.checked = options_.check_iters > 0;
  return timing;
}

uint64_t Bench::check(const Shape& shape, bool in_place) {
  uint64_t wrong = 0;
  workload_.set_shape(shape, in_place);
  for (int i = 0; i < options_.check_iters; ++i) {
    const uint64_t seed = options_.seed + 1000 * static_cast<uint64_t>(i + 1);  // other inputs than the timed ones
    workload_.fill(seed);
    run_collective();
    wrong += workload_.wrong(seed);
  }
  if (!workload_.guards_intact())
    throw Failure{"bytes around a buffer were overwritten at size " + std::to_string(shape.bytes())};
  return options_.check_iters == 0 ? 0 : static_cast<uint64_t>(sum(static_cast<double>(wrong)));
}

// A peer adds in its own order: small integers come out the same in any.
void Bench::check_peer(const Shape& shape, Peer& peer, int variant) {
  const Problem problem{shape.type, shape.op, Inputs::kSmallIntegers, options_.seed, shape.nranks};
  fill_input(problem, shape.rank, 0, shape.count, workload_.data(0));
  require(peer.run(variant));
  tune_tcp();  // a peer may connect as late as in its first operation
  std::vector<unsigned char> want(shape.bytes());
  fill_expected(problem, 0, shape.count, want.data());
  const double wrong = sum(static_cast<double>(count_wrong(shape.type, workload_.data(0), want.data(), shape.count)));
  if (wrong > 0) {
    throw Failure{peer.name() + " (" + peer.variant_name(variant) + ") has " + std::to_string(static_cast<uint64_t>(wrong)) +
                  " wrong elements at size " + std::to_string(shape.bytes()) + ": nothing to compare with"};
  }
}

double Bench::timed_us(Entry& entry, int iters) {
  require(group_.barrier());
  Meter meter(comm_);
  for (int i = 0; i < iters; ++i) {
    if (entry.peer == nullptr) {
      run_collective();
    } else {
      require(entry.peer->run(entry.variant));
    }
  }
  meter.stop(comm_);
  entry.cpu_us = over(meter.cpu_us / iters, Average::kMean);
  entry.wire_bytes += meter.wire_bytes;
  entry.resent += meter.resent;
  return over(meter.wall_us / iters, options_.average_given ? options_.average : Average::kMost);
}

std::vector<Bench::Entry> Bench::contestants(const Shape& shape) {
  std::vector<Entry> entries(1);
  entries[0].result.name = "gatun";
  for (const auto& peer : peers_) {
    for (int variant = 0; variant < peer->variants(group_.size()); ++variant) {
      require(peer->prepare(variant, workload_.data(0), shape.count, shape.type, shape.op));
      check_peer(shape, *peer, variant);
      Entry entry;
      entry.peer = peer.get();
      entry.variant = variant;
      entry.result.name = peer->name();
      entry.result.variant = peer->variant_name(variant);
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

// How often each contestant runs in one repetition, and how many repetitions there are.
int Bench::choose_pace(std::vector<Entry>& entries) {
  const Pace pace = options_.quick ? kQuickPace : kPace;
  double round_us = 0;
  for (Entry& entry : entries) {
    entry.result.us.push_back(timed_us(entry, 1));
  }
  drop_slow_variants(entries, kHopelessFactor);
  for (Entry& entry : entries) {
    entry.result.us.clear();
    if (entry.dropped) continue;
    const double once_us = timed_us(entry, 2);
    const int chosen = static_cast<int>(pace.repetition_us / std::max(once_us, 1.0));
    entry.result.iters = options_.iters_given ? options_.iters : std::clamp(chosen, 1, pace.iters_max);
    entry.wire_bytes = entry.resent = 0;
    round_us += entry.result.iters * once_us;
  }
  if (options_.repetitions > 0) return options_.repetitions;
  return std::clamp(static_cast<int>(pace.row_us / round_us), kRepetitionsMin, pace.repetitions);
}

void Bench::compare(const Shape& shape) {
  Timing ours;
  ours.wrong = check(shape, true);
  ours.checked = options_.check_iters > 0;
  workload_.set_shape(shape, true);
  std::vector<Entry> entries = contestants(shape);
  workload_.fill(options_.seed);
  const int repetitions = choose_pace(entries);
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (Entry& entry : entries) {
      if (entry.dropped) continue;
      entry.result.us.push_back(timed_us(entry, entry.result.iters));
      entry.result.cpu_us.push_back(entry.cpu_us);
    }
    if (repetition + 1 == kPruneAfter) drop_slow_variants(entries, kPruneFactor);
  }
  const Entry& own = entries[0];
  ours.us = own.result.median_us();
  for (const double cpu_us : own.result.cpu_us) ours.cpu_us += cpu_us / repetitions;
  ours.wire_bytes = over(own.wire_bytes / (static_cast<double>(own.result.iters) * repetitions), Average::kMean);
  ours.resent = static_cast<uint64_t>(sum(own.resent));
  for (Entry& entry : entries) {
    if (entry.peer != nullptr) entry.peer->finish(entry.variant);
  }
  if (report_ != nullptr) report_comparison(shape, ours, entries);
}

void Bench::drop_slow_variants(std::vector<Entry>& entries, double factor) {
  for (Entry& entry : entries) {
    for (const Entry& other : entries) {
      if (entry.peer == nullptr || other.peer != entry.peer || other.dropped) continue;
      entry.dropped |= entry.result.median_us() > factor * other.result.median_us();
    }
  }
}

void Bench::report_comparison(const Shape& shape, const Timing& ours, const std::vector<Entry>& entries) {
  std::vector<Contestant> best, all;
  for (const Entry& entry : entries) all.push_back(entry.result);
  for (const auto& peer : peers_) {
    const Contestant* fastest = nullptr;
    for (const Entry& entry : entries) {
      if (entry.peer != peer.get() || entry.dropped) continue;
      if (fastest == nullptr || entry.result.median_us() < fastest->median_us()) fastest = &entry.result;
    }
    best.push_back(*fastest);
  }
  report_->comparison(shape, ours, best, all);
}

}  // namespace gatun::perf
