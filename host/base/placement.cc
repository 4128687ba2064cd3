#include "host/base/placement.h"

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace gatun {

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  for (const char* at = text.c_str(); *at != 0;) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at || first < 0) return {};
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long core = first; core <= last && cores.size() < 65536; ++core) cores.push_back(static_cast<int>(core));
    at = *end == ',' ? end + 1 : end;
    if (at == end && *end != 0) return {};
  }
  return cores;
}

// The device itself may be of a bus that knows nothing of nodes, such as virtio; the one that it hangs on then does.
std::vector<int> cores_near(const std::string& device, const std::string& sys) {
  std::error_code error;
  const std::filesystem::path root = std::filesystem::canonical(sys, error);
  std::filesystem::path folder = std::filesystem::canonical(sys + "/" + device, error);
  for (; !error && folder != root && folder.has_relative_path(); folder = folder.parent_path()) {
    std::ifstream file(folder / "local_cpulist");
    std::string text;
    if (std::getline(file, text)) return parse_core_list(text);
  }
  return {};
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &allowed)) cores.push_back(core);
  }
  return cores;
}

bool place_thread(std::span<const int> cores) {
  cpu_set_t allowed, near, both;
  CPU_ZERO(&near);
  for (const int core : cores) {
    if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &near);
  }
  if (cores.empty() || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  CPU_AND(&both, &allowed, &near);
  return ::sched_setaffinity(0, sizeof both, CPU_COUNT(&both) > 0 ? &both : &near) == 0;
}

}  // namespace gatun
