#include "host/tools/host_facts.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "host/base/module.h"
#include "host/base/os.h"
#include "host/base/settings.h"
#include "host/fallback/nccl/library.h"

namespace gatun {
namespace {

bool option_works(int family, int level, int option, int value) {
  const Fd fd(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.valid() && setsockopt(*fd, level, option, &value, sizeof(value)) == 0;
}

int mtu_of(const std::string& device) {
  const Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  return fd.valid() && ioctl(*fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

std::string address_text(const sockaddr* address) {
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  return getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace

std::vector<Feature> kernel_features() {
  std::vector<Feature> features;
  features.push_back({"udp_gso", option_works(AF_INET, IPPROTO_UDP, UDP_SEGMENT, 1400), "many packets in one send call"});
  features.push_back({"udp_gro", option_works(AF_INET, IPPROTO_UDP, UDP_GRO, 1), "many packets in one receive call"});
  features.push_back({"ecn", option_works(AF_INET, IPPROTO_IP, IP_RECVTOS, 1), "congestion marks of packets can be read"});
  features.push_back({"ipv6", Fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)).valid(), "IPv6 sockets"});
  features.push_back({"memfd", Fd(memfd_create("gatun-info", MFD_CLOEXEC)).valid(), "shared memory for the shm transport"});
  features.push_back({"eventfd", Fd(eventfd(0, EFD_CLOEXEC)).valid(), "door bells of the shm transport"});
  return features;
}

Feature nccl_feature() {
  const auto missing = [](const Status& why) {
    return Feature{"nccl", false, std::string("no ring of GPU memory: ") + why.message()};
  };
  const Result<CudaDriver> cuda = load_cuda("libcuda.so.1");
  if (!cuda.ok()) return missing(cuda.status());
  const Result<NcclLibrary> nccl = load_nccl("libnccl.so.2");
  if (!nccl.ok()) return missing(nccl.status());
  return {"nccl", true, nccl.value().text() + " can be the ring of GPU memory, which operations do not take yet"};
}

std::vector<Device> network_devices() {
  std::vector<Device> devices;
  std::map<std::string, size_t> index;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return devices;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto [place, is_new] = index.emplace(entry->ifa_name, devices.size());
    if (is_new) devices.push_back({entry->ifa_name, {}, mtu_of(entry->ifa_name), (entry->ifa_flags & IFF_UP) != 0});
    if (entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET || entry->ifa_addr->sa_family == AF_INET6) {
      devices[place->second].addresses.push_back(address_text(entry->ifa_addr));
    }
  }
  freeifaddrs(list);
  return devices;
}

std::vector<std::string> rdma_devices() {
  const Result<const void*> report = load_module({.file = "libgatun_verbs.so",
                                                  .entry = "gatun_verbs_report",
                                                  .what = "the verbs transport",
                                                  .needs = "RDMA (libibverbs-dev)"});
  if (!report.ok()) return {report.status().message()};
  std::vector<std::string> lines;
  std::istringstream text(static_cast<const char*>(report.value()));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string kernel_release() {
  utsname names;
  return uname(&names) == 0 ? names.release : "";
}

int cpu_count() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

uint64_t receive_buffer_limit() {
  std::ifstream file("/proc/sys/net/core/rmem_max");
  uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

Result<Fd> connect_within(const std::string& address, int timeout_ms) {
  const Result<std::vector<Endpoint>> endpoints = resolve(address, kDefaultPort);
  if (!endpoints.ok()) return endpoints.status();
  Status error(Code::kSystem, "no address");
  for (const Endpoint& endpoint : endpoints.value()) {
    Fd fd(socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int code = fd.valid() && connect(*fd, endpoint.address(), endpoint.size) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      pollfd watched = {*fd, POLLOUT, 0};
      socklen_t size = sizeof(code);
      code = ETIMEDOUT;
      if (poll(&watched, 1, timeout_ms) == 1) getsockopt(*fd, SOL_SOCKET, SO_ERROR, &code, &size);
    }
    if (code == 0) return fd;
    error = Status(code == ETIMEDOUT ? Code::kTimeout : Code::kSwitchLost, endpoint.text() + ": " + std::strerror(code));
  }
  return error;
}

}  // namespace gatun
