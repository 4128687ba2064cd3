#include "host/tools/explain.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "gatun/gatun.h"
#include "host/tools/settings_flags.h"

namespace gatun {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kPatienceMs = 10'000;

// The ranks are threads of this process, so they meet in its memory.
class MemoryStore {
 public:
  gatun_store_t functions() {
    gatun_store_t functions = GATUN_STORE_INIT;
    functions.context = this;
    functions.set = [](void* self, const char* key, const char* value) {
      auto* store = static_cast<MemoryStore*>(self);
      const std::lock_guard lock(store->mutex_);
      store->values_[key] = value;
      store->changed_.notify_all();
      return 0;
    };
    functions.get = [](void* self, const char* key, char* value, size_t size, int64_t timeout_ms) {
      auto* store = static_cast<MemoryStore*>(self);
      std::unique_lock lock(store->mutex_);
      const auto there = [&] { return store->values_.count(key) != 0; };
      if (!store->changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), there)) return 1;
      std::snprintf(value, size, "%s", store->values_[key].c_str());
      return 0;
    };
    return functions;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

struct Outcome {
  int code = 0;
  std::string error;
  gatun_stats_t stats{};
};

Outcome be_rank(int rank, const std::string& job, const gatun_store_t* store) {
  Outcome outcome;
  gatun_options_t options = GATUN_OPTIONS_INIT;
  options.job = job.c_str();
  options.store = store;
  options.join_timeout_ms = options.timeout_ms = kPatienceMs;
  gatun_comm_t comm = nullptr;
  outcome.code = gatun_comm_create(&comm, kRanks, rank, &options);
  if (outcome.code != GATUN_SUCCESS) {
    outcome.error = gatun_last_error(nullptr);
    return outcome;
  }
  float numbers[4] = {1, 2, 3, 4};
  outcome.code = gatun_allreduce(numbers, numbers, 4, GATUN_F32, GATUN_SUM, comm);
  if (outcome.code != GATUN_SUCCESS) outcome.error = gatun_last_error(comm);
  outcome.stats.size = sizeof outcome.stats;
  gatun_comm_stats(comm, &outcome.stats);
  gatun_comm_destroy(comm);
  return outcome;
}

void print_settings(const Settings& settings) {
  for (const char* key : {"address", "transport", "device", "fallback", "rendezvous", "detect"}) {
    const Settings::Origin& origin = settings.origin(key);
    fmt::print("  {:<10} {:<22} {}\n", key, origin.text, origin.where);
  }
  std::fflush(stdout);  // what follows can take a while where a switch does not answer
}

void print_outcome(const Settings& settings, const Outcome& outcome) {
  const gatun_stats_t& stats = outcome.stats;
  if (outcome.code != GATUN_SUCCESS) {
    fmt::print("\nOperations fail: {}\n", outcome.error);
    return;
  }
  if (stats.why[0] != 0) {
    const bool exact = std::strcmp(stats.transport, "exact") == 0;
    fmt::print("\nOperations go without a switch ({}): {}\n",
               exact ? "exact: by direct exchange, with the bits that a switch would give" : "ring", stats.why);
    fmt::print("A job looks for the switch while it runs, and goes over to it when all its ranks have joined there.\n");
    return;
  }
  fmt::print("\nOperations go through the switch at {} over {}: ", stats.address, stats.transport);
  fmt::print("packets of {} payload bytes, {} in flight on each of {} tree{}.\n", stats.payload_bytes, stats.window,
             stats.trees, stats.trees == 1 ? "" : "s");
  const bool off = settings.values().fallback == "off";
  fmt::print("If it dies, they {}.\n", off ? "fail, as fallback is off" : "go on without it");
}

}  // namespace

int explain_main(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = given;
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::printf(
        "Usage: gatun explain [SETTINGS]\n\nWhich way a job's operations take with these settings on this host, and why. "
        "It finds out by joining as\na job of two ranks, which leaves again.\n\n%s",
        Settings::help().c_str());
    return 0;
  }
  Settings settings;
  if (const Status status = take_setting_flags(&arguments, &settings); !status.ok()) {
    std::fprintf(stderr, "gatun explain: %s\n", status.message());
    return 2;
  }
  if (!arguments.empty()) {
    std::fprintf(stderr, "gatun explain: unknown argument '%s'; gatun explain --help lists the settings\n",
                 arguments[0].c_str());
    return 2;
  }
  setenv("GATUN_LOG", "error", 0);
  print_settings(settings);
  const std::string job = fmt::format("{}-explain-{}", settings.values().job.substr(0, 100), ::getpid());
  MemoryStore memory;
  const gatun_store_t store = memory.functions();
  Outcome outcomes[kRanks];
  std::thread other([&] { outcomes[1] = be_rank(1, job, &store); });
  outcomes[0] = be_rank(0, job, &store);
  other.join();
  print_outcome(settings, outcomes[0].code != GATUN_SUCCESS ? outcomes[0] : outcomes[1]);
  return outcomes[0].code == GATUN_SUCCESS && outcomes[1].code == GATUN_SUCCESS ? 0 : 1;
}

}  // namespace gatun
