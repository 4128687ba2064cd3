#include "host/base/os.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

namespace gatun {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

TimeNs now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

uint64_t random_u64() {
  uint64_t value = 0;
  // Up to 256 bytes are never cut short once the kernel's generator is ready (getrandom(2)).
  ssize_t got;
  do {
    got = getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  GATUN_CHECK(got == sizeof value);
  return value;
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::string host_identity() {
  char boot[64] = "";
  Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  ssize_t size = file.valid() ? ::read(*file, boot, sizeof boot - 1) : -1;
  while (size > 0 && boot[size - 1] == '\n') --size;
  struct stat name_space {};
  if (size <= 0 || ::stat("/proc/self/ns/net", &name_space) != 0) return "";
  return std::string(boot, static_cast<size_t>(size)) + "/" + std::to_string(name_space.st_ino);
}

Status system_error(const std::string& what, int error) {
  char buffer[128];
  return Status(Code::kSystem, "cannot " + what + ": " + strerror_r(error, buffer, sizeof buffer));
}

Result<Endpoint> Endpoint::parse(const std::string& ip, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(ip.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    return Status(Code::kInvalidArgument, "'" + ip + "' is not an IPv4 or IPv6 address; write it like 10.0.0.1 or fd00::1");
  }
  Endpoint endpoint;
  std::memcpy(&endpoint.storage, found->ai_addr, found->ai_addrlen);
  endpoint.size = found->ai_addrlen;
  endpoint.set_port(port);
  freeaddrinfo(found);
  return endpoint;
}

uint16_t Endpoint::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void Endpoint::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

bool Endpoint::loopback() const {
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
  return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
}

std::string Endpoint::ip() const {
  char host[INET6_ADDRSTRLEN + 20] = "?";
  getnameinfo(address(), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::string Endpoint::text() const {
  return (family() == AF_INET6 ? "[" + ip() + "]" : ip()) + ":" + std::to_string(port());
}

Status split_address(const std::string& text, uint16_t default_port, std::string* host, uint16_t* port) {
  auto wrong = [&](const char* why) {
    return Status(Code::kInvalidArgument, "address '" + text + "' " + why + "; expected host, host:port or [v6]:port");
  };
  *port = default_port;
  std::string_view rest(text), digits;
  if (!rest.empty() && rest[0] == '[') {
    size_t end = rest.find(']');
    if (end == std::string_view::npos) return wrong("lacks the closing bracket");
    *host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (rest.empty()) return host->empty() ? wrong("names no host") : Status();
    if (rest[0] != ':') return wrong("has something other than a port after the bracket");
    digits = rest.substr(1);
  } else {
    size_t colon = rest.find(':');
    bool bare_v6 = colon != std::string_view::npos && rest.find(':', colon + 1) != std::string_view::npos;
    if (colon == std::string_view::npos || bare_v6) {
      *host = text;
      return host->empty() ? wrong("names no host") : Status();
    }
    *host = rest.substr(0, colon);
    digits = rest.substr(colon + 1);
  }
  if (host->empty()) return wrong("names no host");
  unsigned value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value == 0 || value > 65535) {
    return wrong("has a port that is not a number from 1 to 65535");
  }
  *port = static_cast<uint16_t>(value);
  return {};
}

Result<std::vector<Endpoint>> resolve(const std::string& text, uint16_t default_port) {
  std::string host;
  uint16_t port = 0;
  if (Status status = split_address(text, default_port, &host, &port); !status.ok()) return status;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return Status(Code::kSystem,
                  "cannot find host '" + host + "': " + gai_strerror(error) + "; check the name or use an IP address");
  }
  std::vector<Endpoint> endpoints;
  for (addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    Endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(&endpoint.storage, info->ai_addr, info->ai_addrlen);
    endpoint.size = info->ai_addrlen;
    endpoint.set_port(port);
  }
  freeaddrinfo(found);
  if (endpoints.empty()) return Status(Code::kSystem, "host '" + host + "' has no IPv4 or IPv6 address");
  return endpoints;
}

}  // namespace gatun
