#include "host/transport/dpdk_eal.h"

#include <dirent.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace gatun {
namespace {

constexpr size_t kSaidBytesMax = 600;
// Without huge pages all memory is reserved at the start, and touched only as it is used.
constexpr uint64_t kOrdinaryBytesMin = uint64_t{1} << 30;

std::mutex said_mutex;
std::string said;

ssize_t hear(void*, const char* text, size_t bytes) {
  const std::lock_guard lock(said_mutex);
  said.append(text, bytes);
  if (said.size() > kSaidBytesMax) said.erase(0, said.size() - kSaidBytesMax);
  return static_cast<ssize_t>(bytes);
}

uint64_t read_number(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (!file) return 0;
  unsigned long long value = 0;
  if (std::fscanf(file, "%llu", &value) != 1) value = 0;
  std::fclose(file);
  return value;
}

uint64_t free_huge_bytes() {
  const std::string folder = "/sys/kernel/mm/hugepages";
  DIR* entries = ::opendir(folder.c_str());
  if (!entries) return 0;
  uint64_t bytes = 0;
  while (const dirent* entry = ::readdir(entries)) {
    unsigned long long kib = 0;
    if (std::sscanf(entry->d_name, "hugepages-%llukB", &kib) != 1) continue;
    bytes += kib * 1024 * read_number(folder + "/" + entry->d_name + "/free_hugepages");
  }
  ::closedir(entries);
  return bytes;
}

// One thread known to DPDK that may run on every core that this process may use.
std::string all_cores() {
  cpu_set_t cores;
  std::string list;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return "0";
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) list += (list.empty() ? "" : ",") + std::to_string(core);
  }
  return "0@(" + list + ")";
}

std::vector<std::string> make_arguments(const EalNeeds& needs) {
  const auto given = [&](std::initializer_list<const char*> names) {
    return std::any_of(needs.arguments.begin(), needs.arguments.end(), [&](const std::string& argument) {
      const std::string name = argument.substr(0, argument.find('='));
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  std::vector<std::string> all = {"gatun", "--no-telemetry", "--log-level=error"};
  if (!given({"-l", "-c", "--lcores"})) all.insert(all.end(), {"--lcores", all_cores()});
  if (needs.pci.empty()) {
    if (!given({"-a", "--allow"})) all.push_back("--no-pci");
    all.push_back("--iova-mode=va");
  } else {
    all.insert(all.end(), {"-a", needs.pci});
  }
  if (!given({"--no-huge", "--in-memory", "--file-prefix", "--huge-dir", "--legacy-mem"})) {
    // virtio_user can hand over the memory of one file only.
    all.push_back("--single-file-segments");
    if (free_huge_bytes() >= needs.huge_bytes()) {
      all.push_back("--in-memory");
    } else {
      all.insert(all.end(), {"--no-huge", "--no-shconf"});
      const uint64_t bytes = std::max(kOrdinaryBytesMin, 4 * needs.memory_bytes);
      if (!given({"-m"})) all.insert(all.end(), {"-m", std::to_string(bytes >> 20)});
    }
  }
  all.insert(all.end(), needs.arguments.begin(), needs.arguments.end());
  return all;
}

Status start(const EalNeeds& needs) {
  cookie_io_functions_t functions{};
  functions.write = hear;
  if (std::FILE* stream = ::fopencookie(nullptr, "w", functions)) {
    std::setvbuf(stream, nullptr, _IONBF, 0);
    rte_openlog_stream(stream);
  }
  static std::vector<std::string> arguments;  // DPDK keeps pointers into them
  arguments = make_arguments(needs);
  int code = 0, error = 0;
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // DPDK's own threads inherit it
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    code = rte_eal_init(static_cast<int>(arguments.size()), pointers.data());
    error = rte_errno;
  }).join();
  if (code >= 0) return {};
  std::string line;
  for (size_t i = 1; i < arguments.size(); ++i) line += " " + arguments[i];
  return Status(Code::kSystem, std::string("DPDK does not start: ") + rte_strerror(error) + eal_says() +
                                   "; its arguments were" + line + " (the setting device can add some, as eal=ARGUMENT)");
}

}  // namespace

Status start_eal(const EalNeeds& needs) {
  static std::mutex mutex;
  static bool started = false;
  static Status status;
  const std::lock_guard lock(mutex);
  if (!started) status = start(needs);
  started = true;
  return status;
}

std::string eal_says() {
  const std::lock_guard lock(said_mutex);
  std::string text = said;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "" : "; DPDK says: " + text;
}

void forget_what_eal_said() {
  const std::lock_guard lock(said_mutex);
  said.clear();
}

}  // namespace gatun
