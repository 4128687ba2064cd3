#include <algorithm>

#include "host/base/os.h"
#include "host/fallback/store.h"

namespace gatun {
namespace {

constexpr TimeNs kLookAtStop = 200 * kMs;

bool stopped(const std::atomic<bool>* stop) {
  return stop && stop->load();
}

Result<std::string> get(Store& store, const std::string& key, TimeNs deadline, const std::atomic<bool>* stop) {
  while (true) {
    const TimeNs now = now_ns();
    Result<std::string> text = store.get(key, stop ? std::min(deadline, now + kLookAtStop) : deadline);
    if (text.ok() || text.status().code() != Code::kTimeout || now >= deadline || !stop) return text;
    if (stopped(stop)) return Status(Code::kAborted, "the exchange was called off");
  }
}

}  // namespace

Result<std::vector<std::string>> exchange(Store& store, const std::string& prefix, uint32_t rank, uint32_t ranks,
                                          const std::string& mine, TimeNs deadline, const std::atomic<bool>* stop) {
  if (Status status = store.set(prefix + "/" + std::to_string(rank), mine); !status.ok()) return status;
  std::vector<std::string> texts(ranks);
  std::string missing;
  int missing_ranks = 0;
  for (uint32_t i = 0; i < ranks; ++i) {
    if (i == rank) {
      texts[i] = mine;
      continue;
    }
    // After the deadline as well: it says who has come by then.
    Result<std::string> text = get(store, prefix + "/" + std::to_string(i), deadline, stop);
    if (text.ok()) {
      texts[i] = std::move(text.value());
    } else if (text.status().code() == Code::kTimeout) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(i);
      ++missing_ranks;
    } else if (missing_ranks == 0) {
      return text.status();
    } else {
      break;  // the store ended while it was asked who else is missing
    }
  }
  if (missing_ranks == 0) return texts;
  return Status(Code::kTimeout, std::string(missing_ranks == 1 ? "rank " : "ranks ") + missing + " of " +
                                    std::to_string(ranks) +
                                    " did not come in time: check that every process runs, with the same job name and size");
}

}  // namespace gatun
