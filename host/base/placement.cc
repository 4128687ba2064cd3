#include "host/base/placement.h"

#include <sched.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace gatun {
namespace {

// "0-3,8,10-11", as the kernel writes lists of cores.
std::vector<int> parse_cores(const std::string& text) {
  std::vector<int> cores;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    const int numbers = std::sscanf(range.c_str(), "%d-%d", &first, &last);
    if (numbers < 1) return {};
    if (numbers == 1) last = first;
    for (int core = first; core <= last && core < CPU_SETSIZE; ++core) cores.push_back(core);
  }
  return cores;
}

}  // namespace

// The device itself may be of a bus that knows nothing of nodes, such as virtio; the one that it hangs on then does.
std::vector<int> cores_near(const std::string& device, const std::string& sys) {
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(sys, error);
  std::filesystem::path folder = std::filesystem::canonical(sys + "/" + device, error);
  for (; !error && folder != root && folder.has_relative_path(); folder = folder.parent_path()) {
    std::ifstream file(folder / "local_cpulist");
    std::string text;
    if (std::getline(file, text)) return parse_cores(text);
  }
  return {};
}

bool place_thread(std::span<const int> cores) {
  cpu_set_t allowed, near, both;
  CPU_ZERO(&near);
  for (const int core : cores) CPU_SET(static_cast<size_t>(core), &near);
  if (cores.empty() || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  CPU_AND(&both, &allowed, &near);
  return ::sched_setaffinity(0, sizeof both, CPU_COUNT(&both) > 0 ? &both : &near) == 0;
}

}  // namespace gatun
