// HostView: what /proc and /sys say of this host, as findings. The root is "" but in tests, which make trees of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/placement.h"
#include "host/tools/doctor/findings.h"

namespace gatun {

class HostView {
 public:
  explicit HostView(std::string root = "") : root_(std::move(root)) {}

  bool may(int capability) const;  // this process, by its number in linux/capability.h

  void clock(Section* section) const;
  // limit_bytes: RLIMIT_MEMLOCK, ~0 for none.
  void locked_memory(uint64_t limit_bytes, uint64_t needed_bytes, Section* section) const;
  std::string cards() const;  // the network cards on PCI with their drivers, for a sentence
  // A network card that DPDK is to drive, by its PCI address: is it there, and does its driver let DPDK have it? False: it
  // does not reach ordinary memory.
  bool card(const std::string& pci, Section* section) const;
  // Where DPDK finds too few it takes ordinary memory.
  void huge_pages(uint64_t wanted_bytes, bool ordinary_works, Section* section) const;
  // Whether these cores are on the node of the device whose folder in /sys this is. Nothing where there is one node only.
  void numa(const std::string& device, const std::string& name, const std::vector<int>& cores, Section* section) const;

 private:
  std::string line(const std::string& path) const;  // the first of a file; "" if there is none
  uint64_t number(const std::string& path) const;
  std::vector<std::string> names(const std::string& folder) const;  // sorted
  bool vfio(const std::string& pci, Section* section) const;

  std::string root_;
};

}  // namespace gatun
