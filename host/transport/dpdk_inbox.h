// DpdkInbox: where a device lays the frames for one of its transports, and how that transport sleeps.
//
// Whichever transport polls the device deals out what it finds, since a device has fewer queues than it has transports: one
// thread at a time writes an inbox (under the device's receive lock), its owner reads it. A reader announces that it sleeps
// before it looks a last time, a writer looks for sleepers after it has written, so no wake-up is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/base/os.h"
#include "host/transport/dpdk_frame.h"
#include "protocols/status.h"
#include "protocols/time.h"

struct rte_mbuf;

namespace gatun {

class DpdkInbox {
 public:
  struct Arrival {
    rte_mbuf* mbuf = nullptr;
    Frame frame;  // views into the mbuf
  };
  static constexpr uint32_t kCells = 512;  // a power of two

  // sockets: readable when the device has frames; none: the device cannot tell, and is looked at from time to time.
  static Result<std::unique_ptr<DpdkInbox>> make(const std::vector<int>& sockets);

  // The device.
  bool put(const Arrival& arrival);  // false: full
  void wake();                       // after put()s: ends the owner's sleep

  // The owner.
  bool take(Arrival* arrival);
  bool empty() const { return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire); }
  uint32_t room() const { return kCells - (tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_relaxed)); }
  void announce_sleep() { asleep_.store(true, std::memory_order_seq_cst); }
  void arm();  // the clock that ends the sleep, where nothing else does
  void end_sleep();
  int wait_fd() const { return epoll_.get(); }
  uint64_t overflows() const { return overflows_.load(std::memory_order_relaxed); }

 private:
  DpdkInbox() : cells_(kCells) {}

  std::vector<Arrival> cells_;
  std::atomic<uint32_t> head_{0}, tail_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<uint64_t> overflows_{0};
  Fd epoll_, event_, timer_;  // timer_: not valid with sockets
  bool armed_ = false;
  uint32_t idle_waits_ = 0;  // since something came
};

}  // namespace gatun
