// What `gatun doctor` reads of a host, from trees made here.
#include <linux/capability.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "host/tools/doctor/host_view.h"

namespace gatun {
namespace {

namespace fs = std::filesystem;

class Tree {
 public:
  Tree() {
    char name[] = "/tmp/gatun_doctor_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root_ = name;
  }
  ~Tree() {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  Tree& file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
    return *this;
  }
  Tree& link(const std::string& path, const std::string& target) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::error_code error;
    fs::remove(root_ + path, error);
    fs::create_symlink(target, root_ + path);
    return *this;
  }
  Tree& card(const std::string& pci, const std::string& driver) {
    file("/sys/bus/pci/devices/" + pci + "/class", "0x020000");
    return driver.empty() ? *this : link("/sys/bus/pci/devices/" + pci + "/driver", "../../drivers/" + driver);
  }
  HostView view() const { return HostView(root_); }

 private:
  std::string root_;
};

Finding only(const Section& section) {
  REQUIRE(section.findings.size() == 1);
  return section.findings[0];
}

constexpr const char* kClock = "/sys/devices/system/clocksource/clocksource0/";
constexpr const char* kPages = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
constexpr const char* kPci = "0000:3b:00.0";
constexpr const char* kGroup = "/sys/bus/pci/devices/0000:3b:00.0/iommu_group";

Finding clock(const std::string& current, const std::string& available) {
  Tree tree;
  tree.file(std::string(kClock) + "current_clocksource", current);
  tree.file(std::string(kClock) + "available_clocksource", available);
  Section section;
  tree.view().clock(&section);
  return only(section);
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("host_view__may", "[doctor]") {
  Tree tree;
  CHECK_FALSE(tree.view().may(CAP_IPC_LOCK));  // nothing is known
  tree.file("/proc/self/status", "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000004000");
  CHECK(tree.view().may(CAP_IPC_LOCK));
  CHECK_FALSE(tree.view().may(CAP_NET_RAW));
}

TEST_CASE("host_view__clock", "[doctor]") {
  CHECK(clock("tsc", "tsc hpet").level == Level::kOk);
  CHECK(clock("arch_sys_counter", "arch_sys_counter").level == Level::kOk);
  const Finding slow = clock("hpet", "hpet tsc acpi_pm");
  CHECK(slow.level == Level::kWarn);
  CHECK(has(slow.text, "hpet"));
  CHECK(slow.fix == "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource");
  CHECK(has(clock("acpi_pm", "hpet acpi_pm").fix, "clocksource=tsc"));
  Section unknown;
  Tree().view().clock(&unknown);
  CHECK(only(unknown).level == Level::kOk);
}

TEST_CASE("host_view__locked_memory", "[doctor]") {
  Tree tree;
  const auto found = [&](uint64_t limit) {
    Section section;
    tree.view().locked_memory(limit, 5 << 20, &section);
    return only(section);
  };
  CHECK(found(64 << 10).level == Level::kMissing);
  CHECK(has(found(64 << 10).text, "64 KiB"));
  CHECK(has(found(64 << 10).text, "5 MiB"));
  CHECK(has(found(64 << 10).fix, "ulimit -l unlimited"));
  CHECK(found((5 << 20) - 1).level == Level::kMissing);
  CHECK(found(5 << 20).level == Level::kOk);
  CHECK(found(~uint64_t{0}).level == Level::kOk);
  tree.file("/proc/self/status", "CapEff:\t0000000000004000");
  CHECK(found(0).level == Level::kOk);
}

TEST_CASE("host_view__card", "[doctor]") {
  Tree tree;
  const auto found = [&](bool reaches, Level level) {
    Section section;
    CHECK(tree.view().card(kPci, &section) == reaches);
    CHECK(section.findings.back().level == level);
    return section.findings.back();
  };
  tree.card("0000:00:03.0", "ena").file("/sys/bus/pci/devices/0000:00:01.0/class", "0x010000");
  const Finding absent = found(false, Level::kMissing);
  CHECK(has(absent.text, "no PCI device 0000:3b:00.0 here; there are: 0000:00:03.0 (driver ena)"));
  CHECK_FALSE(has(absent.text, "0000:00:01.0"));

  tree.card(kPci, "");
  CHECK(has(found(false, Level::kMissing).text, "no driver"));
  tree.card(kPci, "ixgbe");
  CHECK(has(found(false, Level::kMissing).text, "the kernel's driver ixgbe"));
  CHECK(has(found(false, Level::kMissing).fix, "dpdk-devbind.py -b vfio-pci 0000:3b:00.0"));
  tree.card(kPci, "mlx5_core");
  found(true, Level::kOk);
  tree.card(kPci, "igb_uio");
  found(false, Level::kOk);
}

TEST_CASE("host_view__card_behind_vfio", "[doctor]") {
  Tree tree;
  tree.card(kPci, "vfio-pci");
  const auto last = [&](bool reaches) {
    Section section;
    CHECK(tree.view().card(kPci, &section) == reaches);
    REQUIRE(section.findings.size() == 2);
    CHECK(section.findings[0].name == "device");
    return section.findings[1];
  };
  CHECK(last(false).name == "IOMMU");
  CHECK(last(false).level == Level::kMissing);
  CHECK(has(last(false).fix, "iommu=pt"));
  tree.link(kGroup, "../../../kernel/iommu_groups/12");
  CHECK(last(true).name == "permission");
  CHECK(last(true).level == Level::kMissing);
  CHECK(has(last(true).fix, "chown $USER /dev/vfio/12"));
  tree.file("/dev/vfio/noiommu-12", "");
  CHECK(last(false).level == Level::kOk);
  CHECK(has(last(false).text, "unprotected"));
  tree.file("/dev/vfio/12", "");
  CHECK(last(true).level == Level::kOk);
}

TEST_CASE("host_view__huge_pages", "[doctor]") {
  Tree tree;
  const auto found = [&](bool ordinary_works) {
    Section section;
    tree.view().huge_pages(32 << 20, ordinary_works, &section);
    return only(section);
  };
  CHECK(found(false).level == Level::kMissing);
  CHECK(has(found(false).text, "none; 32 MiB are wanted"));
  CHECK(found(true).level == Level::kWarn);
  CHECK(found(true).fix == "echo 17 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  tree.file(std::string(kPages) + "nr_hugepages", "512").file(std::string(kPages) + "free_hugepages", "15");
  CHECK(has(found(false).text, "15 of 512 pages of 2 MiB free"));
  CHECK(found(false).level == Level::kMissing);
  CHECK(has(found(false).fix, "echo 514 > "));  // those that are there stay
  tree.file(std::string(kPages) + "free_hugepages", "16");
  CHECK(found(false).level == Level::kOk);
  tree.file(std::string(kPages) + "free_hugepages", "0");
  tree.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1");
  tree.file("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1");
  CHECK(found(false).level == Level::kOk);
}

TEST_CASE("host_view__numa", "[doctor]") {
  Tree tree;
  const std::string device = "/sys/class/net/eth0/device";
  const auto found = [&](std::vector<int> cores) {
    Section section;
    tree.view().numa(device, "eth0", cores, &section);
    return section;
  };
  CHECK(found({0}).findings.empty());  // a virtual device
  tree.file(device + "/numa_node", "-1");
  CHECK(found({0}).findings.empty());
  tree.file(device + "/numa_node", "1");
  tree.file("/sys/devices/system/node/node0/cpulist", "0-3").file("/sys/devices/system/node/node1/cpulist", "4-6,8");
  CHECK(only(found({4, 6, 8})).level == Level::kOk);
  const Finding far = only(found({3, 4, 7}));
  CHECK(far.level == Level::kWarn);
  CHECK(has(far.text, "eth0 is on node 1, and 2 of this process's 3 cores are not"));
  CHECK(far.fix == "numactl --cpunodebind=1 --membind=1 COMMAND");
}

}  // namespace gatun
