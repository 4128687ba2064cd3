#include "host/transport/udp_socket.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "protocols/packet.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace gatun {

namespace {

constexpr int kEct0 = 2;  // RFC 3168: ECN-capable, not marked
constexpr uint32_t kUdpHeaderBytes = 8, kIp4HeaderBytes = 20, kIp6HeaderBytes = 40;
constexpr uint32_t kIpPacketBytesMax = 65535;

bool set_option(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

int int_option(int fd, int level, int option, int otherwise) {
  int value = otherwise;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, level, option, &value, &size) == 0 ? value : otherwise;
}

// The forced variants pass the administrator's limit where we may; else the kernel cuts the wish down to it.
void set_buffer_sizes(int fd, uint32_t bytes) {
  const int wanted = static_cast<int>(std::min<uint32_t>(bytes, 1u << 30));
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, wanted)) set_option(fd, SOL_SOCKET, SO_RCVBUF, wanted);
  if (!set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, wanted)) set_option(fd, SOL_SOCKET, SO_SNDBUF, wanted);
}

}  // namespace

Result<Fd> make_udp_socket(int family, const UdpSocketOptions& options) {
  Fd fd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
  if (!fd.valid()) {
    const bool absent = errno == EAFNOSUPPORT;
    return Status(absent ? Code::kUnsupported : Code::kSystem,
                  std::string("cannot make a UDP socket for ") + (family == AF_INET6 ? "IPv6: " : "IPv4: ") +
                      (absent ? "this host has it switched off" : std::strerror(errno)));
  }
  set_buffer_sizes(fd.get(), options.socket_bytes);
  if (options.busy_poll_us > 0) set_option(fd.get(), SOL_SOCKET, SO_BUSY_POLL, options.busy_poll_us);
  if (family == AF_INET6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    set_option(fd.get(), IPPROTO_IPV6, IPV6_TCLASS, kEct0);
    set_option(fd.get(), IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    set_option(fd.get(), IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
  } else {
    set_option(fd.get(), IPPROTO_IP, IP_TOS, kEct0);
    set_option(fd.get(), IPPROTO_IP, IP_RECVTOS, 1);
    set_option(fd.get(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  }
  return fd;
}

Status bind_udp(int fd, const Endpoint& local) {
  if (::bind(fd, local.address(), local.size) == 0) return {};
  const int error = errno;
  const std::string what = "cannot listen on UDP " + local.text() + ": ";
  const std::string port = std::to_string(local.port());
  switch (error) {
    case EADDRINUSE:
      return Status(Code::kSystem, what + "the port is taken, perhaps by another gatund ('ss -ulpn sport = :" + port +
                                       "' names it); stop that or use another port");
    case EADDRNOTAVAIL:
      return Status(Code::kInvalidArgument, what + "no interface of this host has that address ('ip addr' lists them)");
    case EACCES:
      return Status(Code::kSystem, what + "ports below 1024 need a privilege; use a higher one");
    default:
      return Status(Code::kSystem, what + std::strerror(error));
  }
}

Status connect_udp(int fd, const Endpoint& peer) {
  if (::connect(fd, peer.address(), peer.size) == 0) return {};
  const int error = errno;
  const bool no_route = error == ENETUNREACH || error == EHOSTUNREACH;
  return Status(Code::kSystem, "cannot reach UDP " + peer.text() + ": " + std::strerror(error) +
                                   (no_route ? "; 'ip route get " + peer.ip() + "' must find a route" : ""));
}

Endpoint local_address(int fd) {
  Endpoint address;
  address.size = sizeof(address.storage);
  if (::getsockname(fd, address.address(), &address.size) != 0) address.size = 0;
  return address;
}

bool enable_gro(int fd) { return set_option(fd, IPPROTO_UDP, UDP_GRO, 1); }

bool has_gso(int fd) { return int_option(fd, IPPROTO_UDP, UDP_SEGMENT, -1) >= 0; }

uint32_t receive_buffer_bytes(int fd) {
  // socket(7): the kernel doubles the value to allow for its own overhead, and reports it doubled.
  return static_cast<uint32_t>(int_option(fd, SOL_SOCKET, SO_RCVBUF, 0)) / 2;
}

uint32_t udp_payload_bytes_max(int fd, int family, bool connected) {
  const bool six = family == AF_INET6;
  uint32_t mtu = kIpPacketBytesMax;
  if (connected) {
    const int path = six ? int_option(fd, IPPROTO_IPV6, IPV6_MTU, 0) : int_option(fd, IPPROTO_IP, IP_MTU, 0);
    if (path > 0) mtu = std::min(mtu, static_cast<uint32_t>(path));
  }
  const uint32_t overhead = (six ? kIp6HeaderBytes : kIp4HeaderBytes) + kUdpHeaderBytes + uint32_t{kHeaderBytes};
  return mtu > overhead ? (mtu - overhead) / 64 * 64 : 0;
}

}  // namespace gatun
