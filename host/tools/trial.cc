#include "host/tools/trial.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

namespace gatun {
namespace {

constexpr int kRanks = 2;

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

const char* given(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

Outcome be_rank(int rank, const Trial& trial, const gatun_store_t* store) {
  Outcome outcome;
  gatun_options_t options = GATUN_OPTIONS_INIT;
  options.job = trial.job.c_str();
  options.address = given(trial.address);
  options.transport = given(trial.transport);
  options.fallback = given(trial.fallback);
  options.payload_bytes = trial.payload_bytes;
  options.store = store;
  options.join_timeout_ms = options.timeout_ms = trial.patience_ms;
  gatun_comm_t comm = nullptr;
  outcome.code = gatun_comm_create(&comm, kRanks, rank, &options);
  if (outcome.code != GATUN_SUCCESS) {
    outcome.error = gatun_last_error(nullptr);
    return outcome;
  }
  if (trial.joined) trial.joined();
  float numbers[4] = {1, 2, 3, 4};
  outcome.code = gatun_allreduce(numbers, numbers, 4, GATUN_F32, GATUN_SUM, comm);
  if (outcome.code != GATUN_SUCCESS) outcome.error = gatun_last_error(comm);
  outcome.stats.size = sizeof outcome.stats;
  gatun_comm_stats(comm, &outcome.stats);
  gatun_comm_destroy(comm);
  return outcome;
}

}  // namespace

Outcome try_job(const Trial& trial) {
  MemoryStore memory;
  const gatun_store_t store = memory.functions();
  Outcome outcomes[kRanks];
  std::thread other([&] { outcomes[1] = be_rank(1, trial, &store); });
  outcomes[0] = be_rank(0, trial, &store);
  other.join();
  // Of two that failed, the one that the other followed says why.
  const bool followed = outcomes[0].code == GATUN_ABORTED && outcomes[1].code != GATUN_SUCCESS;
  return outcomes[outcomes[0].code == GATUN_SUCCESS || followed ? 1 : 0];
}

}  // namespace gatun
