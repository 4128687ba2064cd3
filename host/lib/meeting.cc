#include "host/lib/meeting.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "host/base/os.h"
#include "host/fallback/store.h"

namespace gatun {
namespace {

constexpr TimeNs kRetry = 50 * kMs;
constexpr TimeNs kSleepMax = 3600 * kSecond;

}  // namespace

Meeting::~Meeting() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status Meeting::start(TimeNs after) {
  begin_ = now_ns() + after;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return {Code::kSystem, std::string("cannot start the thread that meets the other ranks: ") + error.what()};
  }
  return {};
}

void Meeting::hurry() {
  const std::lock_guard lock(mutex_);
  begin_ = 0;
  changed_.notify_all();
}

Result<std::vector<std::string>> Meeting::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cards_.has_value(); });
  return *cards_;
}

void Meeting::tell(Cards cards) {
  const std::lock_guard lock(mutex_);
  met_ = cards.ok();
  cards_ = std::move(cards);
  changed_.notify_all();
}

void Meeting::run() {
  {
    std::unique_lock lock(mutex_);
    for (TimeNs now = now_ns(); !stop_ && now < begin_; now = now_ns())
      changed_.wait_for(lock, std::chrono::nanoseconds(std::min(begin_ - now, kSleepMax)));
    if (stop_) return;
  }
  while (true) {
    const Status status = collect();
    if (status.ok()) return;
    // Rank 0 can be killed and started again: then the rendezvous is another one at the same address.
    if (status.code() != Code::kRankLost || now_ns() >= config_.deadline) return tell(status);
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::nanoseconds(kRetry), [&] { return stop_.load(); })) return;
  }
}

// Once: the cards are told before rank 0 stays to serve them to the others.
Status Meeting::collect() {
  Result<std::unique_ptr<Store>> store =
      open_rendezvous(config_.address, config_.job, config_.rank, config_.ranks, config_.deadline, &stop_);
  if (!store.ok()) return store.status();
  while (true) {
    const TimeNs now = now_ns();
    const TimeNs until = config_.warn_every == 0 ? config_.deadline : std::min(config_.deadline, now + config_.warn_every);
    Cards cards = exchange(*store.value(), "gatun/" + config_.job, config_.rank, config_.ranks, config_.card, until, &stop_);
    if (cards.ok()) return tell(std::move(cards)), Status();
    if (cards.status().code() != Code::kTimeout || until == config_.deadline) return cards.status();
    config_.log->warn("waiting at the rendezvous %s: %s", config_.address.c_str(), cards.status().message());
  }
}

}  // namespace gatun
