#include "host/plugins/torch/ext/work.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

namespace py = pybind11;

namespace gatun_torch {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Between two looks at a collective of the inner group: short at first, since most are nearly complete.
constexpr std::chrono::microseconds kFirstPause{50}, kLastPause{5000};

thread_local const Tracker* completing_in_this_thread = nullptr;

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.device().is_cpu()) {
      return {tensor.device()};
    }
  }
  return {};
}

}  // namespace

void run_signal_handlers() {
  const bool main_thread = ::getpid() == ::gettid();  // no other runs them, and it should not want the interpreter
  if (!main_thread || !Py_IsInitialized()) {
    return;
  }
  const py::gil_scoped_acquire with_python;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

Work::Work(std::shared_ptr<Tracker> tracker, uint64_t sequence, std::string name, Collective collective, int rank,
           Milliseconds timeout)
    : c10d::Work(rank, collective.type, collective.title, collective.inputs),
      tracker_(std::move(tracker)),
      sequence_(sequence),
      name_(std::move(name)),
      timeout_(timeout),
      collective_(std::move(collective)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       devices_of(collective_.outputs))) {}

Work::~Work() = default;

std::vector<at::Tensor> Work::result() {
  return collective_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  return future_;
}

uint64_t Work::getSequencenumber() const {
  return sequence_;
}

Milliseconds Work::getTimeout() const {
  return timeout_;
}

void Work::on_done(void* context, int code, const char* error) {
  const auto self = c10::intrusive_ptr<Work>::reclaim(static_cast<Work*>(context));
  bool hand_over;
  {
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->done_ = true;
    self->code_ = code;
    self->error_ = error ? error : "";
    hand_over = self->started_ && !self->driven_;  // else started() or the driving thread goes on
    self->changed_.notify_all();
  }
  if (hand_over) {
    self->tracker_->hand_over(self);
  }
}

void Work::started(gatun_request_t request) {
  bool hand_over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request_ = request;
    started_ = true;
    hand_over = done_;
  }
  if (hand_over && claim()) {
    complete();
  }
}

bool Work::claim() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !std::exchange(claimed_, true);
}

bool Work::drive_slice(const Deadline& deadline) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done_ || driven_ || !started_) {
      return false;
    }
    driven_ = true;
  }
  gatun_wait(&request_, deadline.slice().count());
  std::unique_lock<std::mutex> lock(mutex_);
  if (!request_) {
    changed_.wait(lock, [this] { return done_; });  // the call of on_done may be under way in another thread
  }
  driven_ = false;
  return !done_ && !deadline.over();
}

void Work::drive(const Deadline& deadline) {
  while (drive_slice(deadline)) {
    run_signal_handlers();
  }
  bool done;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done = done_;
  }
  if (done && claim()) {
    complete();
  }
}

bool Work::wait(Milliseconds timeout) {
  const Deadline deadline(timeout);
  for (const auto& before : before_) {
    before->drive(deadline);
  }
  drive(deadline);
  const auto settled = [&] {
    std::unique_lock<std::mutex> lock(mutex_);
    return cv_.wait_for(lock, deadline.slice(), [this] { return completed_; });
  };
  while (!settled() && !deadline.over()) {
    run_signal_handlers();
  }
  return c10d::Work::wait(deadline.timeout());
}

void Work::complete() {
  if (request_) {
    gatun_wait(&request_, -1);  // it is done: this only frees it
  }
  if (code_ != GATUN_SUCCESS) {
    failure_ = tracker_->failure(name_, code_, error_);
  } else if (collective_.unpack) {
    try {
      const at::NoGradGuard no_grad;
      collective_.unpack();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  collective_.inputs.clear();
  collective_.buffer.reset();
  collective_.unpack = nullptr;
  tracker_->retire(*this);
}

void Work::settle() {
  auto failure = failure_;
  finish(failure);
  if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(c10::IValue(collective_.outputs));
  }
}

Tracker::Tracker(gatun_comm_t comm, int rank, int size, std::string group)
    : comm_(comm), rank_(rank), size_(size), group_(std::move(group)) {}

WorkPtr Tracker::submit(Collective collective, Milliseconds timeout, bool after_all, const Start& start) {
  if (collective.timeout > kNoTimeout) {
    timeout = collective.timeout;
  }
  gatun_call_t call = GATUN_CALL_INIT;
  call.tag = collective.tag;
  call.timeout_ms = timeout.count();
  call.done = &Work::on_done;

  std::lock_guard<std::mutex> in_order(submit_mutex_);
  c10::intrusive_ptr<Work> work;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string what = std::string(collective.title).substr(sizeof("gatun:") - 1);
    if (!closed_.empty()) {
      fail(what, GATUN_ABORTED, closed_);
    }
    ++sequence_;
    work = c10::make_intrusive<Work>(shared_from_this(), sequence_, what + " #" + std::to_string(sequence_),
                                     std::move(collective), rank_, timeout);
    if (after_all) {
      work->before_.assign(in_flight_.begin(), in_flight_.end());
      for (const auto& before : in_flight_) {
        before->dependents_.push_back(work);
      }
      work->waits_for_ += static_cast<int>(in_flight_.size());
    }
    work->place_ = in_flight_.insert(in_flight_.end(), work);
    work->open_ = true;
  }
  call.context = c10::intrusive_ptr<Work>(work).release();
  gatun_request_t request = nullptr;
  const int code = start(&call, &request);
  if (code < 0) {
    const std::string error = gatun_last_error(comm_);
    c10::intrusive_ptr<Work>::reclaim(static_cast<Work*>(call.context));
    work->code_ = code;
    work->error_ = error;
    if (work->claim()) {
      work->complete();
    }
    fail(work->name_, code, error);
  }
  work->started(request);
  return work;
}

void Tracker::note_foreign(const WorkPtr& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  foreign_.remove_if([](const WorkPtr& old) { return old->isCompleted(); });
  foreign_.push_back(work);
}

bool Tracker::wait_foreign(Milliseconds timeout, void (*run_between)()) {
  std::list<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    works = foreign_;
  }
  const Deadline deadline(timeout);
  for (const auto& work : works) {
    // Not by short waits: NCCL ends a group when one of its waits has run out of time.
    for (auto pause = kFirstPause; !work->isCompleted() && !deadline.over(); pause = std::min(2 * pause, kLastPause)) {
      std::this_thread::sleep_for(pause);
      run_between();
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  foreign_.remove_if([](const WorkPtr& old) { return old->isCompleted(); });
  return foreign_.empty();
}

uint64_t Tracker::sequence() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequence_;
}

size_t Tracker::in_flight() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_flight_.size();
}

bool Tracker::wait_idle(Milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return in_flight_.empty(); });
}

void Tracker::close(std::string why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_.empty()) {
    closed_ = std::move(why);
  }
}

void Tracker::check_open(const std::string& what) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_.empty()) {
    fail(what, GATUN_ABORTED, closed_);
  }
}

void Tracker::stop(Milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  // The last reference to the group may go in a callback of a future, that is in one of these threads: it ends by itself.
  const int self = completing_in_this_thread == this ? 1 : 0;
  idle_.wait_for(lock, timeout, [&] { return threads_ == self; });
}

std::exception_ptr Tracker::failure(const std::string& what, int code, const std::string& error) const {
  try {
    fail(what, code, error);
  } catch (...) {
    return std::current_exception();
  }
}

void Tracker::fail(const std::string& what, int code, const std::string& error) const {
  const std::string text = "gatun: " + what + " of group '" + group_ + "' on rank " + std::to_string(rank_) + " of " +
                           std::to_string(size_) + ": " + (error.empty() ? gatun_error_string(code) : error);
  if (code == GATUN_INVALID_ARGUMENT) {
    throw c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
  }
  throw BackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

void Tracker::hand_over(c10::intrusive_ptr<Work> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  to_complete_.push_back(std::move(work));
  keep_one_free();
  wake_.notify_one();
}

// Under mutex_. A callback of a future may wait for another operation, so a thread must be left to complete that one.
void Tracker::keep_one_free() {
  if (free_threads_ == 0 && !to_complete_.empty()) {
    try {
      std::thread([keep = shared_from_this()] { keep->run(); }).detach();
    } catch (const std::system_error&) {  // no more threads: who waits for the work completes it, or the end of the group
      return;
    }
    ++threads_;
    ++free_threads_;
  }
}

void Tracker::complete_without_threads() {
  std::deque<c10::intrusive_ptr<Work>> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (threads_ == 0) {
      works.swap(to_complete_);
    }
  }
  for (const auto& work : works) {
    if (work->claim()) {
      work->complete();
    }
  }
}

// Takes the work out of flight and settles what has waited for it, itself included.
void Tracker::retire(Work& work) {
  std::vector<c10::intrusive_ptr<Work>> settled;
  std::vector<c10::intrusive_ptr<Work>> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (work.open_) {
      settled.push_back(*work.place_);
      in_flight_.erase(work.place_);
      work.open_ = false;
    }
    dropped = std::move(work.dependents_);
    for (auto& dependent : dropped) {
      settled.push_back(dependent);
    }
    for (auto& each : settled) {
      if (--each->waits_for_ > 0) {
        each.reset();
      }
    }
    if (in_flight_.empty()) {
      idle_.notify_all();
    }
  }
  for (const auto& each : settled) {
    if (each) {
      each->settle();
    }
  }
}

void Tracker::run() {
  completing_in_this_thread = this;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !to_complete_.empty(); });
    if (to_complete_.empty()) {
      break;
    }
    auto work = std::move(to_complete_.front());
    to_complete_.pop_front();
    --free_threads_;
    keep_one_free();
    lock.unlock();
    if (work->claim()) {
      work->complete();
    }
    work.reset();
    lock.lock();
    ++free_threads_;
  }
  --free_threads_;
  --threads_;
  idle_.notify_all();
}

Bundle::Bundle(int rank, std::vector<WorkPtr> works) : c10d::Work(rank, c10d::OpType::UNKNOWN), works_(std::move(works)) {}

bool Bundle::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) {
      return false;
    }
  }
  return true;
}

bool Bundle::isSuccess() const {
  for (const auto& work : works_) {
    if (!work->isSuccess()) {
      return false;
    }
  }
  return true;
}

std::exception_ptr Bundle::exception() const {
  for (const auto& work : works_) {
    if (const auto failure = work->exception()) {
      return failure;
    }
  }
  return nullptr;
}

std::vector<at::Tensor> Bundle::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_) {
    for (auto& tensor : work->result()) {
      results.push_back(std::move(tensor));
    }
  }
  return results;
}

void Bundle::synchronize() {
  for (const auto& work : works_) {
    work->synchronize();
  }
}

bool Bundle::wait(Milliseconds timeout) {
  bool all = true;
  std::exception_ptr first;
  for (const auto& work : works_) {
    try {
      all = work->wait(timeout) && all;
    } catch (const py::error_already_set&) {  // of a signal: not the end of the work
      throw;
    } catch (...) {
      first = first ? first : std::current_exception();
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> Bundle::getFuture() {
  auto all = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const auto self = c10::intrusive_ptr<Bundle>::unsafe_reclaim_from_nonowning(this);
  const auto left = std::make_shared<std::atomic<size_t>>(works_.size() + 1);
  const auto one_less = [all, self, left] {
    if (left->fetch_sub(1) > 1) {
      return;
    }
    if (const auto failure = self->exception()) {
      all->setError(failure);
    } else {
      all->markCompleted(c10::IValue(self->result()));
    }
  };
  for (const auto& work : works_) {
    work->getFuture()->addCallback([one_less](c10::ivalue::Future&) { one_less(); });
  }
  one_less();
  return all;
}

}  // namespace gatun_torch
