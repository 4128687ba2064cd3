#include <algorithm>

#include "host/base/os.h"
#include "host/fallback/store.h"

namespace gatun {
namespace {

constexpr TimeNs kLookAtStop = 200 * kMs;

Result<std::string> get(Store& store, const std::string& key, TimeNs deadline, const std::atomic<bool>* stop) {
  while (true) {
    const TimeNs now = now_ns();
    Result<std::string> text = store.get(key, stop ? std::min(deadline, now + kLookAtStop) : deadline);
    if (text.ok() || text.status().code() != Code::kTimeout || now >= deadline || !stop) return text;
    if (stop->load()) return Status(Code::kAborted, "the exchange was called off");
  }
}

// texts: of all ranks but one's own; *changed if any is not what it was.
Status collect(Store& store, const std::string& prefix, uint32_t rank, TimeNs deadline, const std::atomic<bool>* stop,
               std::vector<std::string>* texts, bool* changed) {
  std::string missing;
  int missing_ranks = 0;
  for (uint32_t i = 0; i < texts->size(); ++i) {
    if (i == rank) continue;
    // After the deadline as well: it says who has come by then.
    Result<std::string> text = get(store, prefix + "/" + std::to_string(i), deadline, stop);
    if (text.ok()) {
      *changed |= text.value() != (*texts)[i];
      (*texts)[i] = std::move(text.value());
    } else if (text.status().code() == Code::kTimeout) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(i);
      ++missing_ranks;
    } else if (missing_ranks == 0) {
      return text.status();
    } else {
      break;  // the store ended while it was asked who else is missing
    }
  }
  if (missing_ranks == 0) return {};
  return Status(Code::kTimeout, std::string(missing_ranks == 1 ? "rank " : "ranks ") + missing + " of " +
                                    std::to_string(texts->size()) +
                                    " did not come in time: check that every process runs, with the same job name and size");
}

}  // namespace

// A rank that dies while others are awaited may be replaced by one with another text: hence again, until nothing changes.
Result<std::vector<std::string>> exchange(Store& store, const std::string& prefix, uint32_t rank, uint32_t ranks,
                                          const std::string& mine, TimeNs deadline, const std::atomic<bool>* stop) {
  if (Status status = store.set(prefix + "/" + std::to_string(rank), mine); !status.ok()) return status;
  std::vector<std::string> texts(ranks);
  texts[rank] = mine;
  for (bool changed = true; changed;) {
    changed = false;
    if (Status status = collect(store, prefix, rank, deadline, stop, &texts, &changed); !status.ok()) return status;
  }
  return texts;
}

}  // namespace gatun
