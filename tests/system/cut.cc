#include "tests/system/cut.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>

#include "host/base/os.h"

namespace gatun {
namespace {

int option(int socket, int what) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, what, &value, &size) == 0 ? value : -1;
}

bool is_among(int socket, const Sockets& which) {
  if (option(socket, SO_DOMAIN) != AF_INET) return false;
  if (!(option(socket, SO_TYPE) == SOCK_DGRAM ? which.data : which.control)) return false;
  if (which.towards.empty()) return true;
  sockaddr_in peer{};
  socklen_t size = sizeof peer;
  char text[INET_ADDRSTRLEN] = "";
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
         ::inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text) && which.towards == text;
}

bool drop_everything(int socket) {
  sock_filter nothing{.code = BPF_RET | BPF_K, .k = 0};
  const sock_fprog program{.len = 1, .filter = &nothing};
  return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

bool drop_nothing(int socket) {
  const int unused = 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused) == 0 || errno == ENOENT;
}

bool end_connection(int socket) {
  return ::shutdown(socket, SHUT_RDWR) == 0 || errno == ENOTCONN;
}

// 0, 0 if it is not connected.
std::pair<uint16_t, uint16_t> ports_of(int socket) {
  sockaddr_in own{}, peer{};
  socklen_t size = sizeof own, peer_size = sizeof peer;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return {};
  }
  return {ntohs(own.sin_port), ntohs(peer.sin_port)};
}

bool is_tcp(int socket) {
  return option(socket, SO_DOMAIN) == AF_INET && option(socket, SO_TYPE) == SOCK_STREAM;
}

template <typename Which, typename Do>
Status for_each(pid_t process, Which which, Do change) {
  const std::string name = "process " + std::to_string(process);
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd.valid()) return system_error("open " + name, errno);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd", error)) {
    if (!std::filesystem::read_symlink(entry.path(), error).string().starts_with("socket:")) continue;
    const int fd = std::stoi(entry.path().filename().string());
    const Fd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, *pidfd, fd, 0)));
    if (!socket.valid() && errno == EBADF) continue;  // closed meanwhile
    if (!socket.valid()) return system_error("duplicate a socket of " + name, errno);
    if (which(*socket) && !change(*socket)) return system_error("change a socket of " + name, errno);
  }
  return {};
}

Status between(pid_t process, const Ports& of_other, bool (*change)(int socket)) {
  const auto leads_there = [&](int socket) {
    const auto [own, peer] = ports_of(socket);
    return is_tcp(socket) && of_other.contains({peer, own});
  };
  return for_each(process, leads_there, change);
}

}  // namespace

Status cut(pid_t process, const Sockets& which) {
  return for_each(
      process, [&](int socket) { return is_among(socket, which); }, drop_everything);
}

Status heal(pid_t process) {
  const auto any = [](int socket) { return is_among(socket, {.towards = "", .data = true, .control = true}); };
  return for_each(process, any, drop_nothing);
}

Result<Ports> connections(pid_t process) {
  Ports ports;
  const Status status = for_each(process, is_tcp, [&](int socket) {
    if (const auto both = ports_of(socket); both.second != 0) ports.insert(both);
    return true;
  });
  if (!status.ok()) return status;
  return ports;
}

Status cut_between(pid_t process, const Ports& of_other) {
  return between(process, of_other, drop_everything);
}

Status break_between(pid_t process, const Ports& of_other) {
  return between(process, of_other, end_connection);
}

std::string cut_forbidden() {
  const Fd inherited(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const pid_t child = ::fork();
  if (child < 0) return system_error("fork", errno).message();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const Status status = cut(child, {.towards = "", .data = true, .control = true});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return status.message();
}

}  // namespace gatun
