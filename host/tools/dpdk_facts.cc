#include "host/tools/dpdk_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "host/base/module.h"

namespace gatun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEthernetClass = "0x0200";
constexpr const char* kForDpdk[] = {"vfio-pci", "igb_uio", "uio_pci_generic"};
constexpr const char* kShared[] = {"mlx5_core", "mlx4_core"};  // DPDK works beside these

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Of the kernel, on this card or on what hangs on it, such as virtio; "" if there is none.
std::string interface_on(const fs::path& card, const std::string& sys) {
  std::error_code error;
  const fs::path place = fs::canonical(card, error);
  for (const fs::path& interface : entries(sys + "/class/net")) {
    const fs::path device = fs::canonical(interface / "device", error);
    if (!error && std::mismatch(place.begin(), place.end(), device.begin(), device.end()).first == place.end()) {
      return interface.filename();
    }
  }
  return "";
}

std::string describe(const fs::path& card, const std::string& sys) {
  const auto is = [](const std::string& driver) { return [&driver](const char* name) { return driver == name; }; };
  const std::string pci = card.filename(), interface = interface_on(card, sys);
  std::error_code error;
  const std::string driver = fs::read_symlink(card / "driver", error).filename();
  if (std::any_of(std::begin(kForDpdk), std::end(kForDpdk), is(driver)))
    return pci + " is bound to " + driver + ", for DPDK";
  if (std::any_of(std::begin(kShared), std::end(kShared), is(driver))) {
    return pci + " is " + interface + " of " + driver + ", beside which DPDK can use it";
  }
  const std::string bind = "'dpdk-devbind.py -b vfio-pci " + pci + "' binds it for DPDK";
  if (driver.empty()) return pci + " has no driver; " + bind;
  return pci + " is " + (interface.empty() ? "bound to " + driver : interface + " of the kernel's " + driver) + "; " + bind +
         (interface.empty() ? "" : ", which takes " + interface + " away");
}

}  // namespace

std::vector<std::string> network_cards(const std::string& sys) {
  std::vector<std::string> lines;
  for (const fs::path& card : entries(sys + "/bus/pci/devices")) {
    if (first_line(card / "class").starts_with(kEthernetClass)) lines.push_back(describe(card, sys));
  }
  return lines;
}

std::vector<std::string> dpdk_devices() {
  const Result<const void*> module = load_module({.file = "libgatun_dpdk.so",
                                                  .entry = "gatun_dpdk_module",
                                                  .what = "the DPDK transport",
                                                  .needs = "DPDK (libdpdk-dev)"});
  if (!module.ok()) return {module.status().message()};
  std::vector<std::string> lines = network_cards();
  lines.push_back(
      "virtual devices are made when they are named: net_af_packet0,iface=NAME over an interface; net_vhost0,iface=SOCKET "
      "and net_virtio_user0,path=SOCKET between two processes");
  return lines;
}

}  // namespace gatun
