#include "tests/conformance/test_net.h"

#include <sched.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace gatun::conformance {

struct TestNet::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> work;
  bool busy = false, stop = false;
  int error = 0;
  int ends = 0;
  std::string mtu;
  std::thread thread;

  void loop() {
    if (::unshare(CLONE_NEWNET) != 0) error = errno;
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stop || work; });
      if (stop) return;
      const std::function<void()> now = std::move(work);
      work = nullptr;
      lock.unlock();
      now();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

std::string TestNet::missing() {
  if (::geteuid() != 0) return "network namespaces need root";
  std::string why;
  std::thread([&why] {
    if (::unshare(CLONE_NEWNET) != 0) {
      why = std::string("no network namespaces: ") + std::strerror(errno);
    } else if (std::system("ip link add va type veth peer name vb 2>/dev/null") != 0) {
      why = "'ip link add type veth' fails (package iproute2, or the kernel has no veth)";
    }
  }).join();
  return why;
}

TestNet::TestNet(uint32_t mtu) : state_(std::make_unique<State>()) {
  state_->thread = std::thread([this] { state_->loop(); });
  const std::string bytes = state_->mtu = std::to_string(mtu);
  // No wait for duplicates of addresses of IPv6, where the kernel has IPv6.
  for (const std::string& line :
       {std::string("ip link add va type veth peer name vb"), "ip link set va mtu " + bytes, "ip link set vb mtu " + bytes,
        std::string("cd /proc/sys/net/ipv6/conf && echo 0 >all/accept_dad && echo 0 >default/accept_dad || true"),
        std::string("ip link set va up"), std::string("ip link set vb up")}) {
    CAPTURE(line);
    REQUIRE(command(line));
  }
  REQUIRE(state_->error == 0);
}

TestNet::~TestNet() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

void TestNet::run(const std::function<void()>& work) {
  start(work);
  finish();
}

void TestNet::start(std::function<void()> work) {
  const std::lock_guard lock(state_->mutex);
  state_->work = std::move(work);
  state_->busy = true;
  state_->changed.notify_all();
}

bool TestNet::done() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->busy;
}

void TestNet::finish() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return !state_->busy; });
}

std::string TestNet::add_end() {
  const std::string number = std::to_string(++state_->ends), end = "e" + number, other = "f" + number;
  if (state_->ends == 1) {
    REQUIRE(command("ip link add name bridge0 type bridge mcast_snooping 0 && ip link set bridge0 mtu " + state_->mtu +
                    " up && "
                    "ip link set vb master bridge0"));
  }
  REQUIRE(command("ip link add " + end + " mtu " + state_->mtu + " type veth peer name " + other + " mtu " + state_->mtu +
                  " && ip link set " + other + " master bridge0 up && ip link set " + end + " up"));
  return end;
}

bool TestNet::command(const std::string& line) {
  int code = -1;
  run([&] { code = std::system(line.c_str()); });
  return code == 0;
}

}  // namespace gatun::conformance
