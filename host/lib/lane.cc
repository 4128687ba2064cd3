#include "host/lib/lane.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "host/base/placement.h"

namespace gatun {
namespace {

constexpr uint32_t kWarnShare = 4;     // the controller is asked about late ranks when this share of the time is left,
constexpr TimeNs kLeaveTogether = 1 * kSecond;  // a rank that is done serves the others for so long
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

Lane::Lane(Config config, std::unique_ptr<SwitchPath> path, std::unique_ptr<Ring> ring, std::string why, const Log* log)
    : config_(std::move(config)),
      log_(log),
      ring_(std::move(ring)),
      path_(std::move(path)),
      pool_(kOperationsMax),
      why_off_(std::move(why)) {
  refused_.reserve(kOperationsMax);
  if (path_) latest_facts_ = path_->facts();
  if (ring_) agreement_ = std::make_unique<PathAgreement>(config_.rank, ring_->names(), path_ ? &path_->job() : nullptr);
  off_switch_ = path_ == nullptr;
}

Lane::~Lane() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    background_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  // Whoever still calls us stops first.
  if (ring_) ring_->mesh().stop();
  std::vector<std::unique_ptr<SwitchPath>> paths;
  {
    const Lock lock(mutex_);
    paths.swap(dropped_paths_);
    paths.push_back(std::move(path_));
    paths.push_back(std::move(ready_path_));
  }
}

Status Lane::run_paths() {
  Lock lock(mutex_);
  if (ring_) {
    if (Status status = start_background(lock); !status.ok()) return status;
    ring_->mesh().run(this);
  }
  return path_ ? path_->run(this) : Status();
}

// The rule by which threads share the datapath: return when `until` holds or the time has come; meanwhile drive, or let
// another thread drive. `until` is evaluated with and without the lock.
template <typename Until>
void Lane::await(Lock& lock, Until until, TimeNs deadline) {
  bool expired = false;
  while (!until() && !expired) {
    if (!driving_ && !off_switch_) {
      driving_ = true;
      lock.unlock();
      drive(until, deadline);
      lock.lock();
      driving_ = false;
      expired = now_ns() >= deadline;
      continue;
    }
    if (!driving_) background_.notify_one();  // off the switch
    const bool take_over = background_drives_;
    if (take_over && takers_.fetch_add(1, std::memory_order_relaxed) == 0) wake();
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
  if (off_switch_) {
    background_.notify_one();
  } else if (waiting_ > 0) {
    turn_over_.notify_all();
  } else if (pending_.load(std::memory_order_relaxed) > 0) {
    background_.notify_one();
  }
}

// One turn by a caller that will not wait, if nobody else drives.
void Lane::turn_once(Lock& lock) {
  if (driving_ || off_switch_) return;
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
    if (until() || now >= deadline || off_switch_.load(std::memory_order_relaxed)) return;
    if (worked) {
      backoff.reset();
    } else if (backoff.idle()) {
      rest(now, deadline);
      backoff.reset();
    }
  }
}

void Lane::rest(TimeNs now, TimeNs deadline) {
  const TimeNs until = std::min({deadline, next_check_, path_->datapath().poll_timer(now)});
  path_->waiter().wait(until == kNever ? kNever : until - now);
}

void Lane::background() {
  Lock lock(mutex_);
  std::vector<int> near;
  while (true) {
    background_.wait(lock, [&] {
      const bool alone = pending_.load(std::memory_order_relaxed) > 0 && waiting_ == 0;
      return stop_ || (!driving_ && (off_switch_ || alone));
    });
    if (stop_) return;
    if (off_switch_) {
      driving_ = true;
      live_off_switch(lock);
      driving_ = false;
      hand_over(lock);
      continue;
    }
    driving_ = background_drives_ = true;
    if (near != path_->facts().cores) place_thread(near = path_->facts().cores);
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
  r->send = send;
  r->recv = recv;
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
  wake();
  return {};
}

Status Lane::start(const Contract& contract, const void* send, void* recv, const Call& call, Request** request) {
  Lock lock(mutex_);
  Status status = start_background(lock);
  if (status.ok()) status = queue(lock, contract, send, recv, call, request);
  if (!status.ok()) return status;
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

bool Lane::drain(TimeNs deadline) {
  Lock lock(mutex_);
  const auto none_pending = [&] { return pending_.load(std::memory_order_relaxed) == 0; };
  await(lock, none_pending, deadline);
  return none_pending();
}

// Under the mutex: makes whoever has the token look at what is new.
void Lane::wake() {
  if (off_switch_) {
    background_.notify_one();
  } else if (driving_ && path_) {
    path_->waiter().wake();
  }
}

// own: this rank's decision (" gave up: "); else the word of another, or of the controller, which is passed on as it came.
void Lane::fail(Lock&, Status status, const char* own) {
  if (!failure_.ok()) return;
  failure_ = std::move(status);
  if (ring_) {
    const std::string who = *own ? ring_->mesh().card(config_.rank).text(config_.rank) + own : "";
    // Others may wait for this rank while nothing is wrong with them.
    tell_all(mesh_wire::Abort{.text = who + failure_.message(),
                              .timed_out = failure_.code() == Code::kTimeout,
                              .lost = failure_.code() == Code::kRankLost});
    ring_->interrupt(failure_);
  }
  inbox_.store(true, std::memory_order_relaxed);
  wake();
  wanted_.notify_all();
}

Status Lane::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void Lane::give_up_job(const std::string& reason) {
  Lock lock(mutex_);
  if (path_) path_->send(control::Abort{.text = reason});
  fail(lock, {Code::kAborted, reason}, " aborted the job: ");
}

void Lane::leave() {
  SwitchPath* path = nullptr;
  {
    // Another rank may lack what only this one retains, should the switch die now.
    Lock lock(mutex_);
    tell_all(mesh_wire::Leave{.ordinal = started()});
    const auto all_have_left = [&] { return !agreement_ || !failure_.ok() || agreement_->staying() == 0; };
    turn_over_.wait_until(lock, time_point(now_ns() + kLeaveTogether), all_have_left);
    path = path_.get();
  }
  if (path) path->leave();
}

Lane::Stats Lane::stats() {
  Lock lock(mutex_);
  Stats stats;
  between_turns(lock, [&] { stats = gather_stats(); });
  return stats;
}

// Under the mutex, when no turn is under way: by whoever drives, if somebody does. Off the switch, once its path is frozen.
void Lane::between_turns(Lock& lock, const std::function<void()>& work) {
  Errand errand{.work = &work};
  errands_.push_back(&errand);
  while (!errand.done) {
    if (off_switch_ ? !path_ || path_->datapath().frozen() : !driving_) {
      run_errands();
      break;
    }
    inbox_.store(true, std::memory_order_relaxed);
    wake();
    ++waiting_;
    turn_over_.wait(lock);
    --waiting_;
  }
  hand_over(lock);
}

void Lane::run_errands() {
  for (Errand* errand : errands_) {
    (*errand->work)();
    errand->done = true;
  }
  if (!errands_.empty()) turn_over_.notify_all();
  errands_.clear();
}

Lane::Present Lane::present() const {
  const Lock lock(mutex_);
  return {.path = latest_facts_, .on_switch = !off_switch_, .why = off_switch_ ? why_off_ : ""};
}

}  // namespace gatun
