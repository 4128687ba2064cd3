// The lane off the switch: giving the switch up, finishing what was in flight, operations on the ring, and going back.
//
// All of it is the background thread's, which holds the token as long as off_switch_ says so. The agreement decides
// (protocols/path.h); the mesh's thread and the control client's feed it.
#include <algorithm>
#include <bit>

#include "host/base/settings.h"
#include "host/lib/lane.h"
#include "host/lib/sentences.h"

namespace gatun {
namespace {

using State = PathAgreement::State;

constexpr TimeNs kReasonWait = 500 * kMs;  // a broken stream's cause may still be on its way as a message
constexpr TimeNs kTurn = 500 * kMs;        // of fail_late(): a rank that is heard has answered by then, also on a busy host

}  // namespace

// --- What others say -----------------------------------------------------------------------------------------------------

void Lane::on_mesh_message(uint32_t rank, std::span<const std::byte> bytes) {
  mesh_wire::Message message;
  const std::string wrong = mesh_wire::decode(bytes, &message);
  Lock lock(mutex_);
  if (const auto* alive = std::get_if<mesh_wire::KeepAlive>(&message); alive && wrong.empty()) {
    alive_ |= uint64_t{1} << rank;
    if (alive->ask) on_asked(rank);
  } else if (wrong.empty()) {
    agreement_->on_message(rank, message);
  } else {
    agreement_->on_failure({Code::kInternal, ring_->mesh().card(rank).text(rank) + " sent what cannot be read: " + wrong});
  }
  after_mesh(lock);
}

// The job ends: an operation's time is over at this rank. So it ends what runs here, to say whom this one does not hear.
void Lane::on_asked(uint32_t rank) {
  ring_->mesh().send(rank, mesh_wire::encode(mesh_wire::KeepAlive{}));
  if (!off_switch_ || !asked_by_.empty()) return;
  asked_by_ = ring_->mesh().card(rank).text(rank);
  ring_->interrupt({Code::kAborted, "the job ends"});
}

void Lane::on_mesh_end(uint32_t rank, const std::string& why) {
  Lock lock(mutex_);
  agreement_->on_end(rank, why);
  after_mesh(lock);
}

void Lane::after_mesh(Lock& lock) {
  if (agreement_->state() == State::kFailed) return fail(lock, agreement_->status());
  take_turns_off(lock);
  if (off_switch_) background_.notify_one();
  turn_over_.notify_all();  // leave() waits for others to leave
}

void Lane::suspect(Lock& lock, const std::string& why) {
  if (!failure_.ok()) return;
  if (!agreement_) return fail(lock, {Code::kSwitchLost, why});
  agreement_->on_suspect(why);
  take_turns_off(lock);
}

// The driver lets go after its turn, and the background thread takes over.
void Lane::take_turns_off(Lock&) {
  if (agreement_->state() == State::kSwitch || off_switch_) return;
  if (driving_) path_->waiter().wake();
  off_switch_ = true;
  turn_over_.notify_all();
  background_.notify_one();
}

void Lane::on_path_end(SwitchPath* path, const Status& status) {
  Lock lock(mutex_);
  if (path == ready_path_.get()) {
    ready_ended_ = true;
    wanted_.notify_all();
  } else if (path == path_.get() && !off_switch_) {
    if (status.code() == Code::kSwitchLost) return suspect(lock, status.message());
    fail(lock, status);
  }
}

void Lane::on_mismatch(SwitchPath* path, uint32_t op, const std::string& text) {
  const Lock lock(mutex_);
  if (path != path_.get()) return;
  mismatches_.push_back({op, text});
  inbox_.store(true, std::memory_order_relaxed);
  wake();
}

void Lane::on_stall_text(SwitchPath* path, uint32_t op, const std::string& text) {
  const Lock lock(mutex_);
  if (path == path_.get()) stall_text_ = {op, text};
}

void Lane::on_left(SwitchPath* path, uint32_t started, const std::string& text) {
  const Lock lock(mutex_);
  if (path != path_.get() || off_switch_) return;
  const uint32_t ordinal = first_ordinal_ + started;
  if (any_left_ && serial_distance(ordinal, left_.op) >= 0) return;
  left_ = {ordinal, text};
  any_left_ = true;
  inbox_.store(true, std::memory_order_relaxed);
  wake();
}

control::KeepAlive Lane::progress(SwitchPath* path) {
  const Lock lock(mutex_);
  if (path != path_.get()) return {};
  return {.started = started() - first_ordinal_, .finished = finished() - first_ordinal_};
}

void Lane::tell_all(const mesh_wire::Message& message) {
  if (ring_) ring_->mesh().send_all(mesh_wire::encode(message));
}

// --- The background thread -----------------------------------------------------------------------------------------------

void Lane::live_off_switch(Lock& lock) {
  while (!stop_) {
    if (failure_.ok() && agreement_->state() == State::kFailed) fail(lock, agreement_->status());
    if (!failure_.ok()) {
      end_all_off_switch(lock);
      background_.wait(lock, [&] { return stop_; });  // nothing begins any more
      return;
    }
    switch (agreement_->state()) {
      case State::kSwitch: return;
      case State::kFreeze: freeze(lock); break;
      case State::kFrozen: wait_off_switch(lock); break;
      case State::kRecover: recover(lock); break;
      case State::kRing: ring_step(lock); break;
      case State::kFailed: break;
    }
    if (agreement_->state() == State::kSwitch) {
      off_switch_ = false;
      inbox_.store(true, std::memory_order_relaxed);
    }
  }
}

void Lane::freeze(Lock& lock) {
  lock.unlock();
  settle();  // what the last turn has completed
  lock.lock();
  if (agreement_->state() != State::kFreeze) return;  // a rank is lost
  tell_all(agreement_->freeze(path_->datapath().freeze()));
  why_off_ = agreement_->why();
  turn_over_.notify_all();  // between_turns()
  const uint32_t by = agreement_->by();
  const std::string who = by == config_.rank ? "" : ", says " + ring_->mesh().card(by).text(by);
  log_->warn("the switch is given up: %s%s; operations go on without it (%s)", why_off_.c_str(), who.c_str(),
             ring_->engine());
}

void Lane::recover(Lock& lock) {
  const RecoveryPlan plan = agreement_->plan();
  Datapath& datapath = path_->datapath();
  TimeNs deadline = kNever;
  datapath.for_each_live([&](const Request* request) { deadline = std::min(deadline, request->deadline); });
  deadline = std::min(deadline, now_ns() + config_.timeout);
  lock.unlock();
  const Status status = ring_->recover(plan, datapath, deadline);
  lock.lock();
  if (!status.ok()) return give_up(lock, status);
  if (agreement_->state() != State::kRecover) return;  // a rank is lost

  std::vector<std::pair<Request*, Status>> ended;
  for (uint32_t op = plan.begin_op(); op != plan.end_op(); ++op) {
    const bool differs = plan.fate(op) == RecoveryPlan::Fate::kMismatch;
    const std::string text = differs ? plan.mismatch(op, agreement_->plan_ordinal(op)) : "";
    const auto waits = std::find_if(refused_.begin(), refused_.end(), [&](const Request* r) { return r->number == op; });
    Request* request = waits == refused_.end() ? datapath.take(op) : *waits;
    if (waits != refused_.end()) refused_.erase(waits);
    if (request) ended.emplace_back(request, differs ? Status(Code::kMismatch, text) : Status());
  }
  past_.ring_operations += ended.size();
  for (Request* request : refused_) ended.emplace_back(request, Status(Code::kMismatch, refused_sentence(*request)));
  refused_.clear();
  // What nobody has an answer to begins again, before what the switch has not been given.
  std::vector<Request*> again;
  for (uint32_t op = plan.end_op(); op != datapath.worker().next_op(); ++op) {
    if (Request* request = datapath.take(op)) again.push_back(request);
  }
  while (!again.empty()) {
    again.back()->submitted = false;
    queue_[--queue_head_ % queue_.size()] = again.back();
    again.pop_back();
  }
  next_ordinal_ = agreement_->ring_ordinal();
  agreement_->recovered();
  past_ = gather_stats();
  ++past_.failovers;
  dropped_paths_.push_back(std::move(path_));
  any_left_ = false;
  wanted_.notify_all();
  for (auto& [request, end_status] : ended) end(lock, request, std::move(end_status));
}

void Lane::ring_step(Lock& lock) {
  if (announced_) {
    switch (agreement_->round()) {
      case PathAgreement::Round::kRun: return run_on_ring(lock);
      case PathAgreement::Round::kMismatch: return complete_announced(lock, {Code::kMismatch, agreement_->mismatch()});
      case PathAgreement::Round::kWaiting:
      case PathAgreement::Round::kNone: return wait_off_switch(lock);
    }
  }
  if (queue_head_ == queue_tail_) return wait_off_switch(lock);
  Request* request = queue_[queue_head_++ % queue_.size()];
  request->ordinal = next_ordinal_++;
  request->submitted = true;
  ready_said_ = ready_path_ && !ready_ended_;
  agreement_->ready(ready_said_ ? &ready_path_->job() : nullptr);
  announced_ = request;
  tell_all(agreement_->announce(request->ordinal, request->contract));
}

void Lane::run_on_ring(Lock& lock) {
  Request* request = announced_;
  lock.unlock();
  const Status status = ring_->run(*request);
  lock.lock();
  if (!status.ok()) return give_up(lock, status);
  ++past_.ring_operations;
  complete_announced(lock, {});
}

void Lane::complete_announced(Lock& lock, Status status) {
  Request* request = std::exchange(announced_, nullptr);
  if (agreement_->state() == State::kRing && agreement_->complete()) go_over(lock);
  if (std::exchange(ready_said_, false)) wanted_.notify_all();
  end(lock, request, std::move(status));
}

void Lane::go_over(Lock& lock) {
  path_ = std::move(ready_path_);
  latest_facts_ = path_->facts();
  first_ordinal_ = agreement_->first_ordinal();
  log_->info("operations go through the switch at %s from now on", path_->facts().address.c_str());
  next_check_ = kNever;
  stall_text_ = {};
  lend_all(lock);
  if (ready_ended_) suspect(lock, "the switch at " + path_->facts().address + " was lost again");
}

// An operation's time is over, here or (text "") at a rank that asks. Whoever waits knows for whom, but that one may wait
// for another: a rank that is not heard is to blame, and not all need miss it. So all ask all, and who misses one has the
// first word, which then is everybody's. Where two ranks miss each other it is the lower's; the other hears it from a third.
void Lane::fail_late(Lock& lock, std::string text) {
  const TimeNs began = now_ns();
  const uint64_t self = uint64_t{1} << config_.rank, all = (uint64_t{1} << (config_.ranks - 1) << 1) - 1;
  uint64_t silent = 0;
  alive_ = self;
  tell_all(mesh_wire::KeepAlive{.ask = true});
  while (failure_.ok() && agreement_->state() != State::kFailed) {
    silent = all & ~alive_;
    const int turn = silent > self ? 1 : silent != 0 ? 2 : !text.empty() ? 3 : 4;  // silent > self: one above this rank
    const TimeNs until = began + turn * kTurn;
    if (now_ns() >= until) break;
    background_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)));
  }
  if (!failure_.ok()) return;
  if (agreement_->state() == State::kFailed) return fail(lock, agreement_->status());  // another was first
  if (text.empty()) text = ring_asked_sentence(announced_, asked_by_);
  if (silent) text += "; " + names_of(silent) + (std::has_single_bit(silent) ? " does" : " do") + " not answer";
  fail(lock, {Code::kTimeout, text}, kGaveUp);
}

// The ring cannot go on. If a rank is behind it, its own word, or the end of its connection, says more than a broken stream.
void Lane::give_up(Lock& lock, const Status& status) {
  if (!failure_.ok()) return;
  if (status.code() == Code::kTimeout) return fail_late(lock, status.message());
  if (status.code() == Code::kAborted) return fail_late(lock, "");  // on_asked()
  const TimeNs until = now_ns() + kReasonWait;
  while (failure_.ok() && agreement_->state() != State::kFailed && status.code() == Code::kRankLost && now_ns() < until) {
    background_.wait_for(lock, std::chrono::milliseconds(10));
  }
  if (!failure_.ok()) return;
  if (agreement_->state() == State::kFailed) return fail(lock, agreement_->status());
  fail(lock, status);
}

// Sleeps until there is news or an operation's time has come.
void Lane::wait_off_switch(Lock& lock) {
  check_off_switch(lock);
  if (!failure_.ok()) return;
  if (next_check_ == kNever) {
    background_.wait(lock);
  } else {
    background_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next_check_)));
  }
}

void Lane::check_off_switch(Lock& lock) {
  const TimeNs now = now_ns();
  next_check_ = kNever;
  const Request* late = nullptr;
  const auto look = [&](Request* request) {
    if (now >= request->deadline && !late) late = request;
    if (now >= request->warn_at && take_warning(request, agreement_->missing(), now)) {
      log_->warn("%s", ring_stall_sentence(*request, awaited(), now).c_str());
    }
    next_check_ = std::min({next_check_, request->deadline, request->warn_at});
  };
  if (path_) path_->datapath().for_each_live(look);
  if (announced_) look(announced_);
  for (uint32_t i = queue_head_; i != queue_tail_; ++i) look(queue_[i % queue_.size()]);
  if (late) return fail_late(lock, ring_timeout_sentence(*late, awaited()));
  if (!asked_by_.empty()) fail_late(lock, "");
}

// "rank 2 (host b, pid 77), rank 3 (...) have not called it"
std::string Lane::awaited() const {
  const uint64_t missing = agreement_->missing();
  if (missing == 0) return "";
  const bool one = std::has_single_bit(missing);
  if (agreement_->state() == State::kFrozen) return names_of(missing) + (one ? " does" : " do") + " not say what it holds";
  return names_of(missing) + (one ? " has" : " have") + " not called it";
}

std::string Lane::names_of(uint64_t ranks) const {
  std::string text;
  for (uint32_t rank = 0; rank < config_.ranks; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    if (!text.empty()) text += ", ";
    text += ring_->mesh().card(rank).text(rank);
  }
  return text;
}

void Lane::end(Lock& lock, Request* request, Status status) {
  request->status = std::move(status);
  lock.unlock();
  finish(std::span(&request, 1));
  lock.lock();
}

void Lane::end_all_off_switch(Lock& lock) {
  if (path_) {
    lock.unlock();
    settle();  // what has completed before
    lock.lock();
  }
  std::vector<Request*> all(refused_.begin(), refused_.end());
  refused_.clear();
  if (path_) {
    Datapath& datapath = path_->datapath();
    datapath.for_each_live([&](Request* request) { all.push_back(request); });
    for (Request* request : all) datapath.take(request->number);
    datapath.freeze();
    turn_over_.notify_all();  // between_turns()
  }
  if (announced_) all.push_back(std::exchange(announced_, nullptr));
  while (queue_head_ != queue_tail_) all.push_back(queue_[queue_head_++ % queue_.size()]);
  const Status failure = failure_;
  for (Request* request : all) end(lock, request, failure);
}

// --- Whoever looks for a switch ------------------------------------------------------------------------------------------

bool Lane::wait_wanted() {
  Lock lock(mutex_);
  while (true) {
    if (ready_path_ && ready_ended_ && !ready_said_ && off_switch_) {
      agreement_->ready(nullptr);
      dropped_paths_.push_back(std::move(ready_path_));
    }
    if (!dropped_paths_.empty()) {
      std::unique_ptr<SwitchPath> path = std::move(dropped_paths_.back());
      dropped_paths_.pop_back();
      lock.unlock();
      path->leave();
      path.reset();  // its thread may call us meanwhile
      lock.lock();
      continue;
    }
    if (!seeking_ || !failure_.ok()) return false;
    if (agreement_->state() == State::kRing && !ready_path_) return true;
    wanted_.wait(lock);
  }
}

void Lane::stop_seeking() {
  const Lock lock(mutex_);
  seeking_ = false;
  wanted_.notify_all();
}

void Lane::offer(std::unique_ptr<SwitchPath> path) {
  const Lock lock(mutex_);
  if (!seeking_ || !failure_.ok() || agreement_->state() != State::kRing || ready_path_) {
    dropped_paths_.push_back(std::move(path));
    return;
  }
  ready_ended_ = false;
  ready_path_ = std::move(path);
  if (const Status status = ready_path_->run(this); !status.ok()) ready_ended_ = true;
}

}  // namespace gatun
