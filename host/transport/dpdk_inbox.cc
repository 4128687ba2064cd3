#include "host/transport/dpdk_inbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gatun {
namespace {

// Between two looks at a device that cannot wake anybody. Below 20 us a sleep costs as much as polling when there are more
// threads than cores; a transport that has been idle for long looks once a millisecond.
constexpr TimeNs kLookMin = 20 * kUs, kLookMax = 1 * kMs;
constexpr uint32_t kWaitsPerDoubling = 64;

bool watch(int epoll, int fd) {
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLET;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted) == 0;
}

}  // namespace

Result<std::unique_ptr<DpdkInbox>> DpdkInbox::make(const std::vector<int>& sockets) {
  std::unique_ptr<DpdkInbox> inbox(new DpdkInbox);
  inbox->epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  inbox->event_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool good = watch(*inbox->epoll_, *inbox->event_);
  for (const int socket : sockets) good = good && watch(*inbox->epoll_, socket);
  if (sockets.empty()) {
    inbox->timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    good = good && watch(*inbox->epoll_, *inbox->timer_);
  }
  if (!good) return system_error("make the descriptors that a DPDK transport sleeps on", errno);
  return inbox;
}

bool DpdkInbox::put(const Arrival& arrival) {
  const uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) == kCells) {
    overflows_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  cells_[tail % kCells] = arrival;
  tail_.store(tail + 1, std::memory_order_seq_cst);
  return true;
}

void DpdkInbox::wake() {
  if (!asleep_.load(std::memory_order_seq_cst) || !asleep_.exchange(false, std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(*event_, &one, sizeof one);
}

bool DpdkInbox::take(Arrival* arrival) {
  const uint32_t head = head_.load(std::memory_order_relaxed);
  if (head == tail_.load(std::memory_order_acquire)) return false;
  *arrival = cells_[head % kCells];
  head_.store(head + 1, std::memory_order_release);
  idle_waits_ = 0;
  return true;
}

void DpdkInbox::arm() {
  if (!timer_.valid()) return;
  const TimeNs look = std::min(kLookMin << std::min(idle_waits_++ / kWaitsPerDoubling, 8u), kLookMax);
  const itimerspec in{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = look}};
  ::timerfd_settime(*timer_, 0, &in, nullptr);
  armed_ = true;
}

void DpdkInbox::end_sleep() {
  asleep_.store(false, std::memory_order_relaxed);
  if (!armed_) return;
  armed_ = false;
  const itimerspec never{};
  ::timerfd_settime(*timer_, 0, &never, nullptr);
}

}  // namespace gatun
