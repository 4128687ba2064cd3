#include "host/base/placement.h"

#include <sched.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

namespace gatun {
namespace {

namespace fs = std::filesystem;

TEST_CASE("parse_core_list__forms", "[base]") {
  CHECK(parse_core_list("0-2,5") == std::vector<int>{0, 1, 2, 5});
  CHECK(parse_core_list("7") == std::vector<int>{7});
  CHECK(parse_core_list("").empty());
  for (const char* wrong : {"x", "1,x", "1;2", "-1", "1-"}) CHECK(parse_core_list(wrong).empty());
  CHECK(parse_core_list("0-4000000000").size() == 65536);
}

// A /sys with two network cards, one of them behind virtio, and a device that knows nothing of cores.
class MadeSys {
 public:
  MadeSys() {
    char name[] = "/tmp/gatun_sys_XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root_ = name;
    device("pci0000:3a/0000:3b:00.0", "8-9,40\n");
    device("pci0000:00/0000:00:03.0", "0\n");
    fs::create_directories(root_ / "devices/pci0000:00/0000:00:03.0/virtio2");
    fs::create_directories(root_ / "devices/virtual/net/veth0");
    device("pci0000:00/0000:00:04.0", "\n");
    device("pci0000:00/0000:00:05.0", "nonsense\n");
    link("bus/pci/devices/0000:3b:00.0", "pci0000:3a/0000:3b:00.0");
    link("bus/pci/devices/0000:00:04.0", "pci0000:00/0000:00:04.0");
    link("bus/pci/devices/0000:00:05.0", "pci0000:00/0000:00:05.0");
    link("class/infiniband/mlx5_0/device", "pci0000:3a/0000:3b:00.0");
    link("class/net/eth0/device", "pci0000:00/0000:00:03.0/virtio2");
    link("class/net/veth0", "virtual/net/veth0");
  }
  ~MadeSys() { fs::remove_all(root_); }
  std::string path() const { return root_; }

 private:
  void device(const std::string& name, const std::string& cores) {
    fs::create_directories(root_ / "devices" / name);
    std::ofstream(root_ / "devices" / name / "local_cpulist") << cores;
  }
  void link(const std::string& from, const std::string& device) {
    fs::create_directories((root_ / from).parent_path());
    fs::create_directory_symlink(root_ / "devices" / device, root_ / from);
  }
  fs::path root_;
};

TEST_CASE("cores_near__a_card_or_what_it_hangs_on", "[base]") {
  const MadeSys sys;
  REQUIRE(cores_near("bus/pci/devices/0000:3b:00.0", sys.path()) == std::vector<int>{8, 9, 40});
  REQUIRE(cores_near("class/infiniband/mlx5_0/device", sys.path()) == std::vector<int>{8, 9, 40});
  REQUIRE(cores_near("class/net/eth0/device", sys.path()) == std::vector<int>{0});
}

TEST_CASE("cores_near__nothing_where_nothing_is_said", "[base]") {
  const MadeSys sys;
  for (const char* device : {"class/net/veth0/device", "class/net/veth0", "class/net/absent/device",
                             "bus/pci/devices/0000:00:04.0", "bus/pci/devices/0000:00:05.0", ""}) {
    CAPTURE(device);
    REQUIRE(cores_near(device, sys.path()).empty());
  }
  REQUIRE(cores_near("class/net/eth0/device", sys.path() + "/absent").empty());
}

std::vector<int> cores_of_this_thread() {
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

TEST_CASE("place_thread__near_whatever_the_starter_was_kept_to", "[base]") {
  const std::vector<int> all = cores_of_this_thread();
  if (all.size() < 2) {
    std::cout << "[skipped] place_thread__near_whatever_the_starter_was_kept_to: there is one core only\n";
    return;
  }
  const std::vector<int> one{all[0]}, other{all[1]}, both{all[0], all[1]};
  bool placed = false;
  const auto cores_in = [&](std::vector<int> cores) {
    placed = place_thread(cores);
    return cores_of_this_thread();
  };
  std::vector<int> elsewhere, narrowed, kept, unknown, absent;
  std::thread([&] {
    place_thread(one);
    std::thread([&] { elsewhere = cores_in(other); }).join();
    std::thread([&] { kept = cores_in(both); }).join();
    std::thread([&] { unknown = cores_in({}); }).join();
    std::thread([&] { absent = cores_in({CPU_SETSIZE - 1}); }).join();
  }).join();
  REQUIRE_FALSE(placed);  // there is no such core
  std::thread([&] { narrowed = cores_in(other); }).join();
  REQUIRE(placed);
  REQUIRE(elsewhere == other);
  REQUIRE(kept == one);
  REQUIRE(unknown == one);
  REQUIRE(absent == one);
  REQUIRE(narrowed == other);
  REQUIRE(cores_of_this_thread() == all);
}

}  // namespace
}  // namespace gatun
