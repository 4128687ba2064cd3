#include "experiments/net/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>

namespace gatun::net {
namespace {

// What CLI11 cannot hold directly.
struct Texts {
  std::vector<std::string> jobs;
  uint32_t mix_ranks = 16;
  double delay_us = 1, time_ms = 0, compute = 1, rto_min_ms = 2;
  uint32_t mark_kb = 0, buffer_kb = 0;
  uint32_t fabric_gbps = 0;
};

template <typename T>
struct Choice {
  const char* name;
  T value;
};
constexpr Choice<Reduction> kReductions[] = {{"trees", Reduction::kTrees}, {"ring", Reduction::kRing}};
constexpr Choice<Trees::Roots> kRoots[] = {{"turn", Trees::Roots::kInTurn}, {"hash", Trees::Roots::kByHash}};
constexpr Choice<RingOrder> kRingOrders[] = {{"leaf", RingOrder::kByLeaf}, {"rank", RingOrder::kByRank}};
constexpr Choice<bool> kFlowLaws[] = {{"dctcp", true}, {"tcp", false}};
constexpr Choice<Placement> kPlacements[] = {
    {"spread", Placement::kSpread}, {"packed", Placement::kPacked}, {"random", Placement::kRandom}};

template <typename T, size_t N>
CLI::Option* add_choice(CLI::App& app, const char* flag, const Choice<T> (&choices)[N], T* value, const char* help) {
  const auto choose = [flag, &choices, value](const std::string& text) {
    std::string names;
    for (const Choice<T>& choice : choices) {
      if (text == choice.name) {
        *value = choice.value;
        return;
      }
      names += std::string(names.empty() ? "" : " or ") + choice.name;
    }
    throw CLI::ValidationError(flag, "write " + names + ", not " + text);
  };
  return app.add_option_function<std::string>(flag, choose, help);
}

std::string model_names() {
  std::string names;
  for (const Model& model : models()) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

void add_network_flags(CLI::App& app, Scenario& s, Texts& texts) {
  app.add_option("--topology", s.topology, "leaf-spine, clos3, or a JSON file of hosts and links")->capture_default_str();
  app.add_option("--hosts", s.shape.hosts)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--hosts-per-leaf", s.shape.hosts_per_leaf)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--leaves-per-pod", s.shape.leaves_per_pod, "Of clos3")->check(CLI::Range(1, 64))->capture_default_str();
  auto* over =
      app.add_option("--over-subscription", s.shape.over_subscription, "What a leaf's hosts send over what it sends up")
          ->check(CLI::Range(1, 64))
          ->capture_default_str();
  app.add_option("--spines", s.shape.spines, "Links up from a leaf, instead of an over-subscription")
      ->check(CLI::Range(1, 256))
      ->excludes(over);
  app.add_option("--rate", s.shape.gbps, "Of hosts' links in Gbit/s: 10 to 400, a divisor of 8000")
      ->check(CLI::Range(10, 400))
      ->capture_default_str();
  app.add_option("--fabric-rate", texts.fabric_gbps, "Of links between switches (default: the hosts')")
      ->check(CLI::Range(1, 800));
  app.add_option("--delay", texts.delay_us, "Of a link in microseconds")->check(CLI::Range(0.0, 1e6))->capture_default_str();
  app.add_option("--mark", texts.mark_kb, "ECN threshold K in KB (default: by rate, 97.5 at 10 Gbit/s)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--buffer", texts.buffer_kb, "Of a switch's port in KB (default: by rate, 360 at 10 Gbit/s)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--mtu", s.mtu)->capture_default_str();
  app.add_option("--rto-min", texts.rto_min_ms, "Least timeout in ms, of flows and ranks")
      ->check(CLI::Range(0.01, 10000.0))
      ->capture_default_str();
}

void add_job_flags(CLI::App& app, Scenario& s, Texts& texts) {
  app.add_option("--job", texts.jobs, "MODEL:RANKS or MODEL:RANKS:COMPUTE_MS; once per job. Models: " + model_names());
  app.add_option("--mix", texts.mix_ranks, "Without --job: jobs of so many ranks on half of the hosts; 0: none")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--compute", texts.compute, "Factor on all compute times (0.2: GPUs five times as fast)")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app.add_option("--scale", s.scale, "Factor on gradients and compute times, for short runs")->capture_default_str();
  app.add_option("--iterations", s.iterations, "Of each job, at least")->capture_default_str();
  add_choice(app, "--placement", kPlacements, &s.placement, "spread (over leaves), packed, or random");
  add_choice(app, "--reduction", kReductions, &s.reduction, "trees or ring");
  app.add_option("--trees", s.trees, "Of a job, 1 to 16; chunks take them in turn")->capture_default_str();
  add_choice(app, "--roots", kRoots, &s.roots,
             "turn: spines in turn; hash: the first by the job's hash (with --trees 1: ECMP)");
  app.add_option("--window", s.window, "Chunks of a tree in flight at most, a power of two; auto: as the path holds twice")
      ->transform(CLI::Transformer(std::map<std::string, uint32_t>{{"auto", kWindowOfPath}}))
      ->capture_default_str();
  app.add_flag("!--no-cc", s.congestion_control, "The window stands at its limit");
  add_choice(app, "--ring-order", kRingOrders, &s.ring_order,
             "leaf: neighbours share leaves where they can; rank: by number");
}

void add_flow_flags(CLI::App& app, Options& options, Texts& texts) {
  Scenario& s = options.scenario;
  app.add_option("--load", s.load, "Of short flows, as a share of the hosts' links")->capture_default_str();
  app.add_option("--sizes", s.sizes, "Of short flows: web-search, data-mining, hadoop or storage")->capture_default_str();
  add_choice(app, "--flows", kFlowLaws, &s.ecn, "Of short flows and rings: dctcp, or tcp (NewReno, without ECN)");
  app.add_option("--time", texts.time_ms, "Short flows arrive, and jobs go on, for at least so many ms")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--seed", s.seed)->capture_default_str();
  app.add_flag("--compare", options.compare, "Ring, single tree, ECMP, no congestion control and PANAMA side by side");
  app.add_flag("--json", options.json, "Print JSON");
}

bool parse_job(const std::string& text, double compute, JobKind* job) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return false;
  const Model* model = find_model(std::string_view(text).substr(0, colon));
  const char* at = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto ranks = std::from_chars(at, end, job->ranks);
  if (!model || ranks.ec != std::errc{} || job->ranks < 1) return false;
  double compute_ms = model->compute_ms;
  if (ranks.ptr != end) {
    if (*ranks.ptr != ':') return false;
    const auto ms = std::from_chars(ranks.ptr + 1, end, compute_ms);
    if (ms.ec != std::errc{} || ms.ptr != end || !(compute_ms >= 0 && compute_ms <= 1e6)) return false;
  }
  job->model = model->name;
  job->compute = static_cast<TimePs>(compute_ms * compute * kPsPerMs);
  return true;
}

// Half of the hosts, models in turn.
std::vector<JobKind> mixed_jobs(uint32_t hosts, uint32_t ranks, double compute) {
  std::vector<JobKind> jobs;
  for (uint32_t taken = 0; ranks > 0 && taken + ranks <= std::max(ranks, hosts / 2) && ranks <= hosts; taken += ranks) {
    const Model& model = models()[jobs.size() % models().size()];
    jobs.push_back({std::string(model.name), ranks, static_cast<TimePs>(model.compute_ms * compute * kPsPerMs)});
  }
  return jobs;
}

}  // namespace

int parse(int argc, char** argv, Options* options) {
  CLI::App app("Simulates Gatun's jobs and short DCTCP flows on a network of up to 1,024 hosts, packet by packet",
               "gatun sim net");
  Scenario& s = options->scenario;
  Texts texts;
  s.scale = 1.0 / 32;
  s.load = 0.3;
  add_network_flags(app, s, texts);
  add_job_flags(app, s, texts);
  add_flow_flags(app, *options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return 1 + (app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2);
  }
  s.shape.fabric_gbps = texts.fabric_gbps > 0 ? texts.fabric_gbps : s.shape.gbps;
  s.shape.delay = static_cast<TimePs>(texts.delay_us * kPsPerUs);
  s.limits = {.mark_bytes = texts.mark_kb * 1000, .buffer_bytes = texts.buffer_kb * 1000};
  s.rto_min = static_cast<TimeNs>(texts.rto_min_ms * static_cast<double>(kMs));
  s.time = static_cast<TimePs>(texts.time_ms * kPsPerMs);
  if (texts.jobs.empty()) s.jobs = mixed_jobs(s.shape.hosts, texts.mix_ranks, texts.compute);
  for (const std::string& text : texts.jobs) {
    if (!parse_job(text, texts.compute, &s.jobs.emplace_back())) {
      std::fprintf(stderr, "gatun sim net: --job %s: write MODEL:RANKS or MODEL:RANKS:COMPUTE_MS; models are %s\n",
                   text.c_str(), model_names().c_str());
      return 3;
    }
  }
  return 0;
}

}  // namespace gatun::net
