#include "host/transport/waiter.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace gatun {

Result<std::unique_ptr<Waiter>> Waiter::make() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLET;
  if (!epoll.valid() || !event.valid() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted) != 0) {
    return Status(Code::kSystem, std::string("cannot make a waiter: ") + std::strerror(errno) +
                                     (errno == EMFILE ? "; raise the limit on open files (ulimit -n)" : ""));
  }
  return std::unique_ptr<Waiter>(new Waiter(std::move(epoll), std::move(event)));
}

Status Waiter::add(Transport* transport) {
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLET;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, transport->wait_fd(), &wanted) != 0) {
    return Status(Code::kSystem, std::string("cannot wait for transport ") + transport->caps().name + ": " +
                                     std::strerror(errno));
  }
  transports_.push_back(transport);
  return {};
}

void Waiter::remove(Transport* transport) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, transport->wait_fd(), nullptr);
  std::erase(transports_, transport);
}

void Waiter::wait(TimeNs timeout) {
  uint32_t expected = kAwake;
  const bool sleepy = timeout > 0 && state_.compare_exchange_strong(expected, kAsleep, std::memory_order_seq_cst);
  if (sleepy) {
    size_t prepared = 0;
    if (prepare(&prepared)) block(timeout);
    for (size_t i = 0; i < prepared; ++i) transports_[i]->finish_wait();
  }
  state_.exchange(kAwake, std::memory_order_seq_cst);  // not a store: what a waker wrote before must be seen now
}

void Waiter::wake() {
  if (state_.exchange(kWoken, std::memory_order_seq_cst) != kAsleep) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof(one));
}

bool Waiter::prepare(size_t* prepared) {
  for (Transport* transport : transports_) {
    ++*prepared;
    if (!transport->prepare_wait()) return false;
  }
  return true;
}

void Waiter::block(TimeNs timeout) {
  ++sleeps_;
  epoll_event events[8];
  const bool limited = timeout != kNever;
  if (have_pwait2_) {
    const timespec limit{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
    if (::epoll_pwait2(epoll_.get(), events, 8, limited ? &limit : nullptr, nullptr) >= 0 || errno != ENOSYS) return;
    have_pwait2_ = false;  // Linux before 5.11
  }
  const TimeNs limit_ms = std::min<TimeNs>((timeout - 1) / kMs + 1, INT32_MAX);
  ::epoll_wait(epoll_.get(), events, 8, limited ? static_cast<int>(limit_ms) : -1);
}

}  // namespace gatun
