// What the holder of the lane's token does: one turn after the other.
#include <algorithm>

#include "host/base/settings.h"
#include "host/lib/lane.h"
#include "host/lib/sentences.h"

namespace gatun {
namespace {

constexpr TimeNs kMismatchWait = 2 * kSecond;  // for the controller's sentence about a refused operation
constexpr uint32_t kSettleBatch = 64;
constexpr TimeNs kBehind = 50 * kMs;         // an operation behind the oldest looks again whether it is the oldest
constexpr TimeNs kWarnAgain = 10 * kSecond;  // about the same ranks: a log stays readable

thread_local bool calling_back = false;

}  // namespace

bool Lane::turn(TimeNs now) {
  if (inbox_.load(std::memory_order_relaxed)) take_inbox();
  const bool worked = path_->datapath().pass(now);
  if (agreement_) check_silence(now);
  take_refusals(now);
  if (now >= next_check_) check_deadlines(now);
  return settle() || worked;
}

void Lane::take_inbox() {
  Lock lock(mutex_);
  inbox_.store(false, std::memory_order_relaxed);
  Datapath& datapath = path_->datapath();
  const Operation::Geometry geometry{
      .rank = config_.rank, .ranks = config_.ranks, .payload_bytes = path_->facts().payload_bytes};
  while (failure_.ok() && queue_head_ != queue_tail_ && datapath.can_submit()) {
    Request* request = queue_[queue_head_++ % queue_.size()];
    next_check_ = std::min({next_check_, request->ask_at, request->warn_at, request->deadline});
    request->operation = Operation(request->contract, request->send, request->recv, geometry);
    request->ordinal = next_ordinal_++;
    datapath.submit(request);
  }
  if (queue_head_ != queue_tail_) inbox_.store(true, std::memory_order_relaxed);  // the datapath is full
  if (any_left_) check_left();
  if (!failure_.ok() && !failed_) end_everything(failure_);
  run_errands();
  if (mismatches_.empty()) return;
  const std::vector<Note> notes = std::move(mismatches_);
  mismatches_.clear();
  lock.unlock();
  for (const Note& note : notes) end_refused(note.op, note.text);
}

// The communicator has failed: every operation ends with the cause. Under the lock.
void Lane::end_everything(const Status& failure) {
  failed_ = true;
  next_check_ = kNever;
  Datapath& datapath = path_->datapath();
  datapath.fail_all(failure);
  for (Request* request : refused_) datapath.complete(request, failure);
  refused_.clear();
  while (queue_head_ != queue_tail_) datapath.complete(queue_[queue_head_++ % queue_.size()], failure);
}

// A rank that left in order took part in all that it had started; what came later will never be complete. Under the lock.
void Lane::check_left() {
  const Request* hopeless = nullptr;
  path_->datapath().for_each_live([&](Request* request) {
    if (!hopeless && serial_distance(request->ordinal, left_.op) >= 0) hopeless = request;
  });
  if (!hopeless || !failure_.ok()) return;
  failure_ = Status(Code::kRankLost, left_.text + "; " + describe(hopeless->contract) + " waits for it");
}

// The ranks disagree on these: report what this rank has, and wait a little for the controller's sentence.
void Lane::take_refusals(TimeNs now) {
  Datapath::Refusal refusal;
  while (path_->datapath().poll_refused(&refusal)) {
    path_->send(control::Report{refusal.number, refusal.contract});
    if (!refusal.request) continue;
    refusal.request->deadline = now + kMismatchWait;
    refusal.request->refused = true;
    refused_.push_back(refusal.request);
    next_check_ = std::min(next_check_, refusal.request->deadline);
  }
}

void Lane::end_refused(uint32_t op, const std::string& text) {
  const auto it = std::find_if(refused_.begin(), refused_.end(), [&](const Request* r) { return r->number == op; });
  if (it == refused_.end()) return;
  Request* request = *it;
  refused_.erase(it);
  path_->datapath().complete(request, {Code::kMismatch, text});
}

// Hands out what is done. Callbacks run here, without the lock.
bool Lane::settle() {
  Request* batch[kSettleBatch];
  uint32_t count = 0;
  bool any = false;
  while (true) {
    Request* request = path_->datapath().poll_completed();
    if (request) batch[count++] = request;
    if (count == kSettleBatch || (!request && count > 0)) finish(std::span(batch, std::exchange(count, 0)));
    if (!request) return any;
    any = true;
  }
}

bool Lane::in_done() {
  return calling_back;
}

void Lane::finish(std::span<Request* const> requests) {
  calling_back = true;
  for (Request* request : requests) {
    if (request->done) request->done(request->context, static_cast<int>(request->status.code()), request->status.message());
  }
  calling_back = false;
  const Lock lock(mutex_);
  for (Request* request : requests) {
    if (request->detached) {
      request->status = {};
      pool_.give(request);
    } else {
      request->state.store(Request::kDone, std::memory_order_release);
    }
  }
  const auto count = static_cast<uint32_t>(requests.size());
  finished_.fetch_add(count, std::memory_order_relaxed);
  pending_.fetch_sub(count, std::memory_order_relaxed);
  if (waiting_ > 0) turn_over_.notify_all();
}

void Lane::check_deadlines(TimeNs now) {
  next_check_ = kNever;
  const Request* late = nullptr;
  bool oldest = true;
  path_->datapath().for_each_live([&](Request* request) {
    next_check_ = std::min(next_check_, check(request, std::exchange(oldest, false), now));
    if (now >= request->deadline && !late) late = request;
  });
  {
    const Lock lock(mutex_);
    for (uint32_t i = queue_head_; i != queue_tail_ && !late; ++i) {
      if (now >= queue_[i % queue_.size()]->deadline) late = queue_[i % queue_.size()];
    }
  }
  if (late) {
    time_out(*late, now);
    return;
  }
  for (size_t i = 0; i < refused_.size();) {
    if (now < refused_[i]->deadline) {
      next_check_ = std::min(next_check_, refused_[i++]->deadline);
      continue;
    }
    // The controller is slow; this much is known here.
    end_refused(refused_[i]->number, refused_sentence(*refused_[i]));
  }
}

// What does the controller know of the ranks that an operation waits for?
void Lane::ask_of(uint32_t op, uint64_t missing_ranks) {
  control::Stalled question{.op = op};
  for (uint16_t rank = 0; rank < 64; ++rank) {
    if (missing_ranks >> rank & 1) question.ranks.push_back(rank);
  }
  path_->send(std::move(question));
}

// A living switch answers everything that is said to it, if only that it waits for others.
void Lane::check_silence(TimeNs now) {
  const TimeNs since = path_->datapath().unanswered_since();
  if (since == kNever) return;
  if (path_->datapath().reliable()) {
    // A reliable transport knows when it no longer is, and need not be waited for.
    const Status health = path_->datapath().health();
    if (!health.ok()) {
      Lock lock(mutex_);
      return suspect(lock, health.message());
    }
  }
  if (now - since < config_.detect) return;
  Lock lock(mutex_);
  suspect(lock, "no answer from the switch at " + path_->facts().address + " for " + format_duration(config_.detect));
}

// Asks and warns about a slow operation when its time has come; when to look again. Those behind the oldest wait for it and
// look again later: the controller answers a rank's latest question only.
TimeNs Lane::check(Request* request, bool oldest, TimeNs now) {
  const bool ask = now >= request->ask_at, warn = now >= request->warn_at;
  if (ask || warn) {
    const Datapath::Stall stall = path_->datapath().stall(*request);
    if (stall.missing && oldest) ask_of(request->number, stall.missing);
    if (warn && take_warning(request, stall.missing, now)) {
      log_->warn("%s", stall_sentence(*request, stall, path_->facts().address, now).c_str());
    }
    if (ask) request->ask_at = oldest ? kNever : now + kBehind;
  }
  return std::min({request->ask_at, request->warn_at, request->deadline});
}

// One stall is one warning, however many operations it holds up: about the same ranks the next one has its time later.
bool Lane::take_warning(Request* request, uint64_t culprits, TimeNs now) {
  const bool again = culprits == warned_of_ && now < warned_at_ + kWarnAgain;
  request->warn_at = again ? warned_at_ + kWarnAgain : kNever;
  if (again) return false;
  warned_of_ = culprits;
  warned_at_ = now;
  return true;
}

void Lane::time_out(const Request& request, TimeNs now) {
  std::string known;
  {
    const Lock lock(mutex_);
    path_->datapath().for_each_live([&](const Request* live) {
      if (live->number == stall_text_.op) known = stall_text_.text;  // else it is of a stall that is over
    });
  }
  const Datapath::Stall stall = path_->datapath().stall(request);
  const Status status(Code::kTimeout, timeout_sentence(request, stall, path_->facts().address, known, now));
  {
    Lock lock(mutex_);
    fail(lock, status, kGaveUp);
  }
  path_->send(control::Abort{.text = status.message(), .timed_out = true});
}

Lane::Stats Lane::gather_stats() const {
  Stats stats = past_;
  if (path_) {
    const Datapath& datapath = path_->datapath();
    for (const auto& link : datapath.links()) stats.transport += link->stats();
    stats.resent += datapath.worker().resent();
    stats.marked += datapath.worker().marked();
    stats.dropped += datapath.dropped();
    stats.copied_bytes += datapath.copied_bytes();
  }
  stats.operations = finished();
  if (ring_) stats.ring_bytes = ring_->mesh().bulk_bytes_sent() + ring_->mesh().bulk_bytes_received();
  return stats;
}

}  // namespace gatun
