#include <dirent.h>
#include <sched.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "host/base/placement.h"
#include "switch_model/daemon/lane.h"
#include "tests/unit/lib_fake_link.h"

namespace gatun {
namespace {

// The thread of this process that has this name; 0: none.
pid_t thread_named(const std::string& name) {
  pid_t found = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* task = ::readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/comm");
    std::string text;
    if (std::getline(file, text) && text == name) found = std::atoi(task->d_name);
  }
  ::closedir(tasks);
  return found;
}

TEST_CASE("lane.start__runs_near_the_first_device_whatever_the_starter_was_kept_to", "[daemon]") {
  const std::vector<int> cores = allowed_cores();
  REQUIRE(!cores.empty());
  if (cores.size() < 2) {
    std::cout << "[skipped] lane.start__runs_near_the_first_device: there is one core only\n";
    return;
  }
  std::vector<std::unique_ptr<Transport>> hubs;  // the first has no device
  for (const std::vector<int>& near : {std::vector<int>{}, {cores[1]}, {cores[0]}}) {
    auto hub = std::make_unique<FakeLink>();
    hub->cores = near;
    hubs.push_back(std::move(hub));
  }
  auto lane = Lane::make({.index = 77}, std::move(hubs), nullptr, {});
  REQUIRE(lane.ok());
  std::thread([&] {
    place_thread({&cores[0], 1});
    REQUIRE(lane.value()->start().ok());
  }).join();
  lane.value()->stats();  // the loop answers, so its thread has a place
  const pid_t thread = thread_named("gatund-lane77");
  REQUIRE(thread != 0);
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(thread, sizeof set, &set) == 0);
  REQUIRE(CPU_COUNT(&set) == 1);
  REQUIRE(CPU_ISSET(static_cast<size_t>(cores[1]), &set));
}

}  // namespace
}  // namespace gatun
