#include "host/tools/dpdk_facts.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace gatun {
namespace {

namespace fs = std::filesystem;

// A /sys of cards; each hangs on the bus directly.
class MadeSys {
 public:
  MadeSys() {
    char name[] = "/tmp/gatun_sys_XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root_ = name;
  }
  ~MadeSys() { fs::remove_all(root_); }
  // interface: where below the card's folder its device is, and its name; driver "": none.
  void card(const std::string& pci, const std::string& type, const std::string& driver, const std::string& interface = "",
            const std::string& below = "") {
    const fs::path place = root_ / "devices/pci0000:00" / pci;
    fs::create_directories(place / below);
    std::ofstream(place / "class") << type << "\n";
    fs::create_directories(root_ / "bus/pci/devices");
    fs::create_directory_symlink(place, root_ / "bus/pci/devices" / pci);
    if (!driver.empty()) fs::create_symlink("../../../bus/pci/drivers/" + driver, place / "driver");
    if (interface.empty()) return;
    fs::create_directories(root_ / "class/net" / interface);
    fs::create_directory_symlink(place / below, root_ / "class/net" / interface / "device");
  }
  std::string path() const { return root_; }

 private:
  fs::path root_;
};

TEST_CASE("network_cards__says_who_has_each_and_how_dpdk_gets_it", "[tools]") {
  MadeSys sys;
  sys.card("0000:00:03.0", "0x020000", "virtio-pci", "eth0", "virtio2");
  sys.card("0000:00:04.0", "0x010802", "nvme");  // no network card
  sys.card("0000:3b:00.0", "0x020000", "vfio-pci");
  sys.card("0000:3b:00.1", "0x020000", "ice", "ens1");
  sys.card("0000:3b:00.10", "0x020000", "");  // its place begins like the one before
  sys.card("0000:86:00.0", "0x020000", "mlx5_core", "ens2");
  sys.card("0000:87:00.0", "0x020000", "ixgbe");
  fs::create_directories(sys.path() + "/class/net/lo");
  const std::string bind = "'dpdk-devbind.py -b vfio-pci ";
  REQUIRE(network_cards(sys.path()) ==
          std::vector<std::string>{
              "0000:00:03.0 is eth0 of the kernel's virtio-pci; " + bind +
                  "0000:00:03.0' binds it for DPDK, which takes eth0 away",
              "0000:3b:00.0 is bound to vfio-pci, for DPDK",
              "0000:3b:00.1 is ens1 of the kernel's ice; " + bind + "0000:3b:00.1' binds it for DPDK, which takes ens1 away",
              "0000:3b:00.10 has no driver; " + bind + "0000:3b:00.10' binds it for DPDK",
              "0000:86:00.0 is ens2 of mlx5_core, beside which DPDK can use it",
              "0000:87:00.0 is bound to ixgbe; " + bind + "0000:87:00.0' binds it for DPDK",
          });
}

TEST_CASE("network_cards__none", "[tools]") {
  const MadeSys sys;
  REQUIRE(network_cards(sys.path()).empty());
  REQUIRE(network_cards(sys.path() + "/absent").empty());
}

}  // namespace
}  // namespace gatun
