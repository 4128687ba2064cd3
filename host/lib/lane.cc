#include "host/lib/lane.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace gatun {
namespace {

constexpr uint32_t kWarnShare = 4;     // the controller is asked about late ranks when this share of the time is left,
constexpr TimeNs kAskMax = 500 * kMs;  // but not earlier than this before the deadline

std::chrono::steady_clock::time_point time_point(TimeNs time) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time));
}

bool is_done(const Request* request) {
  return request->state.load(std::memory_order_acquire) == Request::kDone;
}

TimeNs later(TimeNs now, TimeNs duration) {
  return duration >= kNever - now ? kNever : now + duration;
}

}  // namespace

Lane::Lane(Config config, Datapath datapath, std::unique_ptr<Waiter> waiter, Events* events, const Log* log)
    : config_(std::move(config)),
      datapath_(std::move(datapath)),
      waiter_(std::move(waiter)),
      events_(events),
      log_(log),
      pool_(kOperationsMax) {
  refused_.reserve(kOperationsMax);
}

Lane::~Lane() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    background_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

// The rule by which threads share the datapath: return when `until` holds or the time has come; meanwhile drive, or let
// another thread drive. `until` is evaluated with and without the lock.
template <typename Until>
void Lane::await(Lock& lock, Until until, TimeNs deadline) {
  bool expired = false;
  while (!until() && !expired) {
    if (!driving_) {
      driving_ = true;
      lock.unlock();
      drive(until, deadline);
      lock.lock();
      driving_ = false;
      expired = now_ns() >= deadline;
      continue;
    }
    const bool take_over = background_drives_;
    if (take_over && takers_.fetch_add(1, std::memory_order_relaxed) == 0) waiter_->wake();
    ++waiting_;
    if (deadline == kNever) {
      turn_over_.wait(lock);
    } else {
      expired = turn_over_.wait_until(lock, time_point(deadline)) == std::cv_status::timeout;
    }
    --waiting_;
    if (take_over) takers_.fetch_sub(1, std::memory_order_relaxed);
  }
  hand_over(lock);
}

// Whoever lets go of the token, or was told to take it and does not, makes sure that somebody else does if there is work.
void Lane::hand_over(Lock&) {
  if (driving_) return;
  if (waiting_ > 0) {
    turn_over_.notify_all();
  } else if (pending_.load(std::memory_order_relaxed) > 0) {
    background_.notify_one();
  }
}

// One turn by a caller that will not wait, if nobody else drives.
void Lane::turn_once(Lock& lock) {
  if (driving_) return;
  driving_ = true;
  lock.unlock();
  turn(now_ns());
  lock.lock();
  driving_ = false;
  hand_over(lock);
}

template <typename Until>
void Lane::drive(Until until, TimeNs deadline) {
  Backoff backoff(config_.busy_poll);
  while (true) {
    const TimeNs now = now_ns();
    const bool worked = turn(now);
    if (until() || now >= deadline) return;
    if (worked) {
      backoff.reset();
    } else if (backoff.idle()) {
      rest(now, deadline);
      backoff.reset();
    }
  }
}

void Lane::rest(TimeNs now, TimeNs deadline) {
  const TimeNs until = std::min({deadline, next_check_, datapath_.poll_timer(now)});
  waiter_->wait(until == kNever ? kNever : until - now);
}

void Lane::background() {
  Lock lock(mutex_);
  while (true) {
    background_.wait(lock,
                     [&] { return stop_ || (pending_.load(std::memory_order_relaxed) > 0 && !driving_ && waiting_ == 0); });
    if (stop_) return;
    driving_ = background_drives_ = true;
    lock.unlock();
    drive([&] { return takers_.load(std::memory_order_relaxed) > 0 || pending_.load(std::memory_order_relaxed) == 0; },
          kNever);
    lock.lock();
    driving_ = background_drives_ = false;
    hand_over(lock);
  }
}

Status Lane::queue(Lock& lock, const Contract& contract, const void* send, void* recv, const Call& call, Request** request) {
  await(
      lock, [&] { return pending_.load(std::memory_order_relaxed) < kOperationsMax; }, kNever);
  if (!failure_.ok()) return failure_;
  const TimeNs now = now_ns();
  Request* r = pool_.take();
  r->state.store(Request::kPending, std::memory_order_relaxed);
  r->contract = contract;
  r->operation = Operation(contract, send, recv, config_.geometry);
  r->started_at = now;
  r->timeout = call.timeout > 0 ? call.timeout : config_.timeout;
  r->deadline = later(now, r->timeout);
  r->ask_at = r->deadline - std::min(r->timeout / kWarnShare, kAskMax);
  r->warn_at = config_.stall_warning > 0 && config_.stall_warning < r->timeout ? now + config_.stall_warning : kNever;
  r->submitted = false;
  r->detached = request == nullptr;
  r->done = call.done;
  r->context = call.context;
  queue_[queue_tail_++ % queue_.size()] = r;
  pending_.fetch_add(1, std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_relaxed);
  inbox_.store(true, std::memory_order_relaxed);
  if (request) *request = r;
  return {};
}

Status Lane::start(const Contract& contract, const void* send, void* recv, const Call& call, Request** request) {
  Lock lock(mutex_);
  Status status = start_background(lock);
  if (status.ok()) status = queue(lock, contract, send, recv, call, request);
  if (!status.ok()) return status;
  if (driving_) waiter_->wake();
  turn_once(lock);
  return {};
}

Status Lane::start_background(Lock&) {
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread([this] { background(); });
  } catch (const std::system_error& error) {
    return {Code::kSystem, std::string("cannot start the progress thread: ") + error.what()};
  }
  return {};
}

Status Lane::run(const Contract& contract, const void* send, void* recv) {
  Lock lock(mutex_);
  Request* request = nullptr;
  Status status = queue(lock, contract, send, recv, {}, &request);
  if (!status.ok()) return status;
  if (driving_) waiter_->wake();
  await(
      lock, [&] { return is_done(request); }, kNever);
  status = std::move(request->status);
  pool_.give(request);
  return status;
}

bool Lane::test(Request* request) {
  if (is_done(request)) return true;
  Lock lock(mutex_);
  turn_once(lock);
  return is_done(request);
}

bool Lane::wait(Request* request, TimeNs until) {
  if (is_done(request)) return true;
  Lock lock(mutex_);
  await(
      lock, [&] { return is_done(request); }, until);
  return is_done(request);
}

Status Lane::take(Request* request) {
  const Lock lock(mutex_);
  Status status = std::move(request->status);
  pool_.give(request);
  return status;
}

void Lane::drain() {
  Lock lock(mutex_);
  await(
      lock, [&] { return pending_.load(std::memory_order_relaxed) == 0; }, kNever);
}

void Lane::fail(Status status) {
  const Lock lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  inbox_.store(true, std::memory_order_relaxed);
  waiter_->wake();
}

Status Lane::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void Lane::on_mismatch(uint32_t op, std::string text) {
  const Lock lock(mutex_);
  mismatches_.push_back({op, std::move(text)});
  inbox_.store(true, std::memory_order_relaxed);
  waiter_->wake();
}

void Lane::on_stall_text(uint32_t op, std::string text) {
  const Lock lock(mutex_);
  stall_text_ = {op, std::move(text)};
}

void Lane::on_left(uint32_t started, std::string text) {
  const Lock lock(mutex_);
  if (any_left_ && serial_distance(started, left_.op) >= 0) return;
  left_ = {started, std::move(text)};
  any_left_ = true;
  inbox_.store(true, std::memory_order_relaxed);
  waiter_->wake();
}

Lane::Stats Lane::stats() {
  Lock lock(mutex_);
  if (driving_) {
    // The driver answers within a turn, or lets go.
    stats_wanted_ = true;
    inbox_.store(true, std::memory_order_relaxed);
    waiter_->wake();
    ++waiting_;
    turn_over_.wait(lock, [&] { return !stats_wanted_ || !driving_; });
    --waiting_;
  }
  if (!driving_) stats_ = gather_stats();
  stats_wanted_ = false;
  const Stats stats = stats_;
  hand_over(lock);
  return stats;
}

}  // namespace gatun
