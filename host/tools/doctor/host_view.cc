#include "host/tools/doctor/host_view.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host/tools/dpdk_facts.h"

namespace gatun {
namespace {

namespace fs = std::filesystem;

// Read without a system call, or by one that only reads a register.
constexpr const char* kFastClocks[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"};

uint64_t mib(uint64_t bytes) {
  return (bytes + (1 << 20) - 1) >> 20;
}

}  // namespace

std::string HostView::line(const std::string& path) const {
  std::ifstream file(root_ + path);
  std::string text;
  std::getline(file, text);
  return text;
}

uint64_t HostView::number(const std::string& path) const {
  return std::strtoull(line(path).c_str(), nullptr, 10);
}

std::vector<std::string> HostView::names(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root_ + folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool HostView::may(int capability) const {
  std::ifstream file(root_ + "/proc/self/status");
  for (std::string text; std::getline(file, text);) {
    if (text.rfind("CapEff:", 0) == 0) return std::strtoull(text.c_str() + 7, nullptr, 16) >> capability & 1;
  }
  return false;
}

void HostView::clock(Section* section) const {
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const std::string current = line(folder + "current_clocksource");
  const bool fast = std::find(std::begin(kFastClocks), std::end(kFastClocks), current) != std::end(kFastClocks);
  if (current.empty() || fast) {
    return section->ok("clock", current.empty() ? "the kernel does not say which it uses" : current);
  }
  std::string better;
  const std::string available = " " + line(folder + "available_clocksource") + " ";
  for (const char* other : kFastClocks) {
    if (better.empty() && available.find(fmt::format(" {} ", other)) != std::string::npos) better = other;
  }
  section->warn("clock", current + ": each look at the time is slow, and there is one or more per burst of packets",
                better.empty() ? "boot with clocksource=tsc, or find out from dmesg why the kernel gave tsc up"
                               : fmt::format("echo {} > {}current_clocksource", better, folder));
}

void HostView::locked_memory(uint64_t limit_bytes, uint64_t needed_bytes, Section* section) const {
  const std::string needs = fmt::format("{} MiB are needed for a job with these settings", mib(needed_bytes));
  if (limit_bytes == ~uint64_t{0} || may(CAP_IPC_LOCK)) return section->ok("locked memory", "no limit; " + needs);
  const std::string text = fmt::format("at most {} KiB; ", limit_bytes >> 10) + needs;
  if (limit_bytes >= needed_bytes) return section->ok("locked memory", text);
  section->missing("locked memory", text,
                   "ulimit -l unlimited (memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit)");
}

void HostView::huge_pages(uint64_t wanted_bytes, bool ordinary_works, Section* section) const {
  const std::string folder = "/sys/kernel/mm/hugepages/", small = "hugepages-2048kB/nr_hugepages";
  std::string pages;
  uint64_t free_bytes = 0;
  for (const std::string& size : names(folder)) {
    unsigned long long kib = 0;
    if (std::sscanf(size.c_str(), "hugepages-%llukB", &kib) != 1) continue;
    const uint64_t all = number(folder + size + "/nr_hugepages"), free = number(folder + size + "/free_hugepages");
    free_bytes += kib * 1024 * free;
    if (all > 0) pages += fmt::format("{}{} of {} pages of {} MiB free", pages.empty() ? "" : ", ", free, all, kib >> 10);
  }
  if (pages.empty()) pages = "none";
  if (free_bytes >= wanted_bytes) return section->ok("huge pages", pages);
  const uint64_t more = mib(wanted_bytes - free_bytes) / 2 + 1;
  const std::string fix = fmt::format("echo {} > {}{}", number(folder + small) + more, folder, small);
  const std::string text = fmt::format("{}; {} MiB are wanted", pages, mib(wanted_bytes));
  if (ordinary_works) return section->warn("huge pages", text + "; ordinary memory is taken, which is slower", fix);
  section->missing("huge pages", text + ": without an IOMMU a network card reaches no other memory", fix);
}

std::string HostView::cards() const {
  std::string text;
  for (const std::string& pci : card_addresses(root_ + "/sys")) {
    const std::string by = card_driver(pci, root_ + "/sys");
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", pci, by.empty() ? "no driver" : "driver " + by);
  }
  return text.empty() ? "no network card on PCI" : text;
}

bool HostView::card(const std::string& pci, Section* section) const {
  const std::string folder = "/sys/bus/pci/devices/" + pci;
  const std::string by = card_driver(pci, root_ + "/sys");
  if (line(folder + "/class").empty()) {
    section->missing("device", fmt::format("no PCI device {} here; there are: {}", pci, cards()),
                     "correct the setting device (lspci -D | grep Ethernet)");
  } else if (is_beside_kernel(by)) {
    section->ok("device", pci + ", driver " + by + ", shared with the kernel");
    return true;
  } else if (is_for_dpdk(by)) {
    section->ok("device", pci + ", driver " + by);
    return by == "vfio-pci" && vfio(pci, section);
  } else {
    section->missing("device", pci + (by.empty() ? " has no driver" : " belongs to the kernel's driver " + by),
                     fmt::format("modprobe vfio-pci && dpdk-devbind.py -b vfio-pci {}", pci));
  }
  return false;
}

bool HostView::vfio(const std::string& pci, Section* section) const {
  std::error_code error;
  const std::string group =
      fs::read_symlink(root_ + "/sys/bus/pci/devices/" + pci + "/iommu_group", error).filename().string();
  const std::string unsafe = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
  if (group.empty()) {
    section->missing("IOMMU", "off, so vfio-pci hands no device to a process",
                     "boot with intel_iommu=on iommu=pt (AMD: iommu=pt), or, unprotected: echo 1 > " + unsafe);
    return false;
  }
  for (const char* prefix : {"/dev/vfio/", "/dev/vfio/noiommu-"}) {
    const std::string node = prefix + group;
    if (access((root_ + node).c_str(), R_OK | W_OK) != 0) continue;
    const bool without = node.find("noiommu") != std::string::npos;
    section->ok("IOMMU", without ? "off, and vfio goes without it, unprotected: " + node : node);
    return !without;
  }
  section->missing("permission", "this process may not open /dev/vfio/" + group,
                   "run as root, or: chown $USER /dev/vfio/" + group + " (a container must be given that device)");
  return true;
}

void HostView::numa(const std::string& device, const std::string& name, const std::vector<int>& cores,
                    Section* section) const {
  const std::string node = line(device + "/numa_node");
  if (node.empty() || node[0] == '-') return;
  const std::vector<int> near = parse_core_list(line("/sys/devices/system/node/node" + node + "/cpulist"));
  const auto far = [&](int core) { return std::find(near.begin(), near.end(), core) == near.end(); };
  const auto away = std::count_if(cores.begin(), cores.end(), far);
  if (away == 0) return section->ok("NUMA", fmt::format("{} and all of this process's cores are on node {}", name, node));
  section->warn("NUMA",
                fmt::format("{} is on node {}, and {} of this process's {} cores are not: every packet crosses between them",
                            name, node, away, cores.size()),
                fmt::format("numactl --cpunodebind={0} --membind={0} COMMAND", node));
}

}  // namespace gatun
