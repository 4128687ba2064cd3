#include "host/tools/dpdk_facts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "host/transport/dpdk_module.h"

namespace gatun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEthernetClass = "0x0200";
constexpr const char* kForDpdk[] = {"vfio-pci", "igb_uio", "uio_pci_generic"};
constexpr const char* kBesideKernel[] = {"mlx5_core", "mlx4_core"};

fs::path folder_of(const std::string& pci, const std::string& sys) {
  return fs::path(sys) / "bus/pci/devices" / pci;
}

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

std::string describe(const std::string& pci, const std::string& sys) {
  const std::string interface = interface_on(folder_of(pci, sys), sys), driver = card_driver(pci, sys);
  if (is_for_dpdk(driver)) return pci + " is bound to " + driver + ", for DPDK";
  if (is_beside_kernel(driver)) return pci + " is " + interface + " of " + driver + ", beside which DPDK can use it";
  const std::string bind = "'dpdk-devbind.py -b vfio-pci " + pci + "' binds it for DPDK";
  if (driver.empty()) return pci + " has no driver; " + bind;
  return pci + " is " + (interface.empty() ? "bound to " + driver : interface + " of the kernel's " + driver) + "; " + bind +
         (interface.empty() ? "" : ", which takes " + interface + " away");
}

}  // namespace

std::vector<std::string> card_addresses(const std::string& sys) {
  std::vector<std::string> addresses;
  for (const fs::path& device : entries(folder_of("", sys))) {
    if (first_line(device / "class").starts_with(kEthernetClass)) addresses.push_back(device.filename());
  }
  return addresses;
}

std::string card_driver(const std::string& pci, const std::string& sys) {
  std::error_code error;
  return fs::read_symlink(folder_of(pci, sys) / "driver", error).filename();
}

bool is_for_dpdk(const std::string& driver) {
  return std::find(std::begin(kForDpdk), std::end(kForDpdk), driver) != std::end(kForDpdk);
}

bool is_beside_kernel(const std::string& driver) {
  return std::find(std::begin(kBesideKernel), std::end(kBesideKernel), driver) != std::end(kBesideKernel);
}

std::vector<std::string> network_cards(const std::string& sys) {
  std::vector<std::string> lines;
  for (const std::string& pci : card_addresses(sys)) lines.push_back(describe(pci, sys));
  return lines;
}

std::vector<std::string> dpdk_devices() {
  const Result<const DpdkModule*> module = load_dpdk();
  if (!module.ok()) return {module.status().message()};
  std::vector<std::string> lines = network_cards();
  lines.push_back(
      "virtual devices are made when they are named: net_af_packet0,iface=NAME over an interface; net_vhost0,iface=SOCKET "
      "and net_virtio_user0,path=SOCKET between two processes");
  return lines;
}

}  // namespace gatun
