#include "host/lib/control_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "host/base/settings.h"

namespace gatun {
namespace {

// The error that a message means for the whole job; ok if it means none.
Status end_of_job(const control::Message& message) {
  if (const auto* lost = std::get_if<control::Lost>(&message)) return {Code::kRankLost, lost->text};
  if (const auto* abort = std::get_if<control::Abort>(&message)) {
    return {abort->timed_out ? Code::kTimeout : Code::kAborted, abort->text};
  }
  if (const auto* closing = std::get_if<control::Closing>(&message)) return {Code::kSwitchLost, closing->text};
  if (const auto* refused = std::get_if<control::Refused>(&message)) return {Code::kRefused, refused->text};
  return {};
}

}  // namespace

ControlClient::~ControlClient() {
  stop();
}

void ControlClient::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
  thread_.join();
}

// The next message before the start. A living controller says again and again what the job waits for.
Status ControlClient::hear(control::Message* message, TimeNs deadline) {
  while (true) {
    const TimeNs silent = patience_.silence == kNever ? kNever : now_ns() + patience_.silence;
    Status status = connection_->wait_message(message, std::min(deadline, silent), patience_.stop);
    if (status.code() == Code::kTimeout && silent < deadline) {
      return {Code::kSwitchLost, "gatund at " + connection_->name() + " takes connections and says nothing for " +
                                     format_duration(patience_.silence) + ": it is stopped, or hangs"};
    }
    if (status.code() == Code::kAborted && !waits_for_.empty())
      return {Code::kAborted, std::string(status.message()) + " while it waited for " + waits_for_};
    const auto* waiting = status.ok() ? std::get_if<control::Waiting>(message) : nullptr;
    if (!waiting) return status;
    waits_for_ = waiting->text;
    if (patience_.on_waiting) patience_.on_waiting(waits_for_);
  }
}

Result<control::Admit> ControlClient::join(const control::Join& request, TimeNs deadline, std::vector<std::string>* cards) {
  if (Status status = connection_->write(request); !status.ok()) return status;
  while (true) {
    control::Message message;
    Status status = hear(&message, deadline);
    if (status.code() == Code::kTimeout) {
      return Status(Code::kTimeout, "job '" + request.job + "' did not start in time: gatund at " + connection_->name() +
                                        (waits_for_.empty() ? " does not answer" : " waits for " + waits_for_));
    }
    if (status.ok()) status = end_of_job(message);
    if (!status.ok()) return status;
    if (auto* peers = std::get_if<control::Peers>(&message)) *cards = std::move(peers->cards);
    if (auto* admit = std::get_if<control::Admit>(&message)) return std::move(*admit);
  }
}

Result<std::string> ControlClient::attach(uint8_t lane, const std::string& card, TimeNs deadline) {
  Status status = connection_->write(control::Attach{lane, card});
  while (status.ok()) {
    control::Message message;
    status = hear(&message, deadline);
    if (status.code() == Code::kTimeout) {
      return Status(Code::kTimeout, "gatund at " + connection_->name() + " does not say how its RDMA device is reached");
    }
    if (status.ok()) status = end_of_job(message);
    if (!status.ok()) break;
    auto* answer = std::get_if<control::Attach>(&message);
    if (answer && answer->lane == lane) return std::move(answer->card);
  }
  return status;
}

Status ControlClient::ready(TimeNs deadline) {
  Status status = connection_->write(control::Ready{});
  while (status.ok()) {
    control::Message message;
    status = hear(&message, deadline);
    if (status.code() == Code::kTimeout) {
      return {Code::kTimeout, "the job did not start in time: gatund at " + connection_->name() +
                                  (waits_for_.empty() ? " does not answer" : " waits for " + waits_for_)};
    }
    if (status.ok()) status = end_of_job(message);
    if (status.ok() && std::holds_alternative<control::Start>(message)) return {};
  }
  return status;
}

Status ControlClient::ended() {
  Status end = connection_->read();
  control::Message message;
  Status status;
  while (connection_->next(&message, &status) == control::Parser::Next::kMessage) {
    if (status = end_of_job(message); !status.ok()) return status;
  }
  return end;
}

void ControlClient::give_up(const Status& reason) {
  // The connection ends next in any case, which says the same with less detail.
  [[maybe_unused]] const Status status = connection_->write(control::Abort{.text = reason.message()});
}

Status ControlClient::run(Events* events, TimeNs keepalive) {
  events_ = events;
  keepalive_ = keepalive;
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return system_error("make an eventfd", errno);
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return {Code::kSystem, std::string("cannot start the control thread: ") + error.what()};
  }
  return {};
}

void ControlClient::send(control::Message message) {
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back(std::move(message));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
}

void ControlClient::leave(TimeNs within) {
  stop();
  const TimeNs deadline = now_ns() + within;
  // The others must know how far this rank went with them.
  Status status = events_ ? connection_->write(events_->progress()) : Status();
  if (status.ok()) status = connection_->write(control::Leave{});
  while (status.ok() && connection_->unsent() && now_ns() < deadline) {
    pollfd wanted{.fd = connection_->fd(), .events = POLLOUT, .revents = 0};
    ::poll(&wanted, 1, 10);
    status = connection_->flush();
  }
  // What the controller still says is read, so that closing does not reset the connection under our last message.
  control::Message message;
  while (status.ok()) {
    status = connection_->read();
    if (connection_->next(&message, &status) != control::Parser::Next::kMessage) break;
  }
}

// False: the thread shall end.
bool ControlClient::take_outbox() {
  const std::lock_guard lock(mutex_);
  for (const control::Message& message : outbox_) {
    if (!connection_->write(message).ok()) break;  // the reading side tells
  }
  outbox_.clear();
  return !stop_;
}

// False: the job is over.
bool ControlClient::on_message(const control::Message& message) {
  if (const Status status = end_of_job(message); !status.ok()) {
    events_->on_end(status);
    return false;
  }
  if (const auto* mismatch = std::get_if<control::Mismatch>(&message)) events_->on_mismatch(mismatch->op, mismatch->text);
  if (const auto* left = std::get_if<control::Left>(&message)) events_->on_left(left->started, left->text);
  if (const auto* stalled = std::get_if<control::Stalled>(&message)) events_->on_stall_text(stalled->op, stalled->text);
  const auto* alive = std::get_if<control::KeepAlive>(&message);
  if (!alive || !alive->ask) return true;
  const Status status = connection_->write(events_->progress());
  if (!status.ok()) events_->on_end(status);
  return status.ok();
}

void ControlClient::loop() {
  TimeNs heard = now_ns();
  TimeNs speak = heard + keepalive_ / 3;
  while (take_outbox()) {
    const TimeNs now = now_ns();
    if (now >= heard + keepalive_) {
      events_->on_end({Code::kSwitchLost, "nothing was heard from gatund at " + connection_->name() + " for " +
                                              format_duration(keepalive_) + ": it hangs, or the network is cut"});
      return;
    }
    Status status;
    if (now >= speak) {
      status = connection_->write(events_->progress());
      speak = now + keepalive_ / 3;
    }
    pollfd wanted[2] = {{.fd = connection_->fd(), .events = POLLIN, .revents = 0},
                        {.fd = *wake_, .events = POLLIN, .revents = 0}};
    if (connection_->unsent()) wanted[0].events |= POLLOUT;
    const TimeNs until = std::min(speak, heard + keepalive_);
    if (status.ok()) ::poll(wanted, 2, static_cast<int>(std::min<TimeNs>((until - now) / kMs + 1, INT32_MAX)));
    if (wanted[1].revents) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(*wake_, &count, sizeof count);
    }
    if (status.ok() && wanted[0].revents & POLLOUT) status = connection_->flush();
    bool over = !status.ok();
    if (wanted[0].revents & (POLLIN | POLLHUP | POLLERR)) {
      // What was said before the end counts more than the end.
      const Status end = connection_->read();
      if (end.ok()) heard = now_ns();
      if (status.ok()) status = end;
      over = !status.ok();
      control::Message message;
      control::Parser::Next next;
      while ((next = connection_->next(&message, &status)) == control::Parser::Next::kMessage) {
        if (!on_message(message)) return;
      }
      over |= next == control::Parser::Next::kError;
    }
    if (over) {
      events_->on_end(status);
      return;
    }
  }
}

}  // namespace gatun
