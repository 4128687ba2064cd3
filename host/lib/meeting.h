// Meeting: this rank at the rendezvous, in a thread of its own: it gives the rank's card there and collects everyone's.
//
// A rank goes there when its switch is gone, and also when the switch keeps it waiting, since the others may have found
// none. Its card is the same at both places, so it does not matter from which of them the cards come first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class Meeting {
 public:
  struct Config {
    std::string address;  // of the rendezvous
    std::string job;
    uint32_t rank = 0, ranks = 0;
    std::string card;
    TimeNs deadline = 0;
    TimeNs warn_every = 0;  // who is missing; 0: never
    const Log* log = nullptr;
  };

  explicit Meeting(Config config) : config_(std::move(config)) {}
  // Calls it off, which the other ranks must not need any more: they have their mesh, or this rank fails.
  ~Meeting();

  Status start(TimeNs after);  // goes there after this time
  void hurry();                // goes there now
  // Set when all cards are here.
  const std::atomic<bool>& met() const { return met_; }
  // The cards of all ranks, or why there are none by the deadline.
  Result<std::vector<std::string>> wait();

 private:
  using Cards = Result<std::vector<std::string>>;
  void run();
  void tell(Cards cards);
  Status collect();

  const Config config_;
  std::atomic<bool> met_{false}, stop_{false};
  std::mutex mutex_;  // of begin_ and cards_
  std::condition_variable changed_;
  TimeNs begin_ = kNever;
  std::optional<Cards> cards_;
  std::thread thread_;
};

}  // namespace gatun
