#include "switch_model/daemon/listen.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gatun {
namespace {

constexpr int kBacklog = 1024;
constexpr int kPortTries = 32;  // for a free number in TCP and UDP at once

struct Address {
  Endpoint endpoint;
  bool optional = false;  // may be missing on this host: IPv6 loopback of the default
};

Result<std::vector<Address>> addresses(const std::string& listen) {
  std::vector<Address> found;
  const std::string list = listen.empty() ? "127.0.0.1,::1" : listen;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, end - at);
    at = end + 1;
    std::string host;
    uint16_t port = 0;
    if (Status status = split_address(item, 0, &host, &port); !status.ok()) return status;
    if (port != 0) {
      return Status(Code::kInvalidArgument,
                    "listen is '" + item + "'; it takes addresses only, the port is the setting port");
    }
    Result<std::vector<Endpoint>> resolved = resolve(item, 0);
    if (!resolved.ok()) return resolved.status();
    for (const Endpoint& endpoint : resolved.value()) {
      const auto same = [&](const Address& other) { return other.endpoint.text() == endpoint.text(); };
      if (std::none_of(found.begin(), found.end(), same)) {
        found.push_back({endpoint, listen.empty() && endpoint.family() == AF_INET6});
      }
    }
  }
  return found;
}

Status bind_error(const Endpoint& endpoint, int error) {
  const std::string what = "cannot listen on TCP " + endpoint.text() + ": ";
  const std::string port = std::to_string(endpoint.port());
  switch (error) {
    case EADDRINUSE:
      return Status(Code::kSystem, what + "the port is in use, perhaps by another gatund ('ss -tlpn sport = :" + port +
                                       "' names it); stop that, or start this one with another --port");
    case EADDRNOTAVAIL:
      return Status(Code::kInvalidArgument,
                    what + "no interface of this host has that address ('ip addr' lists them); correct the setting listen");
    case EACCES: return Status(Code::kSystem, what + "ports below 1024 need a privilege; choose a higher --port");
    default: return Status(Code::kSystem, what + std::strerror(error));
  }
}

// *error: what the system said, for the caller to decide.
Result<Fd> listen_tcp(const Endpoint& endpoint, int* error) {
  Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  *error = 0;
  if (!fd.valid() || ::setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      (endpoint.family() == AF_INET6 && ::setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
      ::bind(*fd, endpoint.address(), endpoint.size) != 0 || ::listen(*fd, kBacklog) != 0) {
    *error = errno;
    return bind_error(endpoint, *error);
  }
  return fd;
}

uint16_t port_of(int fd) {
  Endpoint bound;
  bound.size = sizeof bound.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  return bound.port();
}

// port 0: the first address takes any free one, and the others must have it free too; then *retry is set on failure.
Result<Sockets> open_at(uint16_t port, const std::vector<Address>& addresses, uint32_t lanes, const UdpOptions* udp,
                        bool* retry) {
  Sockets sockets{.port = port};
  for (const Address& address : addresses) {
    Endpoint endpoint = address.endpoint;
    endpoint.set_port(sockets.port);
    int error = 0;
    Result<Fd> fd = listen_tcp(endpoint, &error);
    if (!fd.ok()) {
      if (address.optional && (error == EADDRNOTAVAIL || error == EAFNOSUPPORT)) continue;
      *retry = error == EADDRINUSE;
      return fd.status();
    }
    if (sockets.port == 0) sockets.port = port_of(*fd.value());
    endpoint.set_port(sockets.port);
    sockets.endpoints.push_back(endpoint);
    sockets.listeners.push_back(std::move(fd.value()));
  }
  if (sockets.port + lanes - 1 > 65535) {
    *retry = true;
    return Status(Code::kInvalidArgument, "port " + std::to_string(sockets.port) + " and " + std::to_string(lanes) +
                                              " lanes need UDP ports above 65535; choose a lower --port");
  }
  for (uint32_t lane = 0; udp != nullptr && lane < lanes; ++lane) {
    auto& hubs = sockets.hubs.emplace_back();
    for (const Endpoint& endpoint : sockets.endpoints) {
      Endpoint local = endpoint;
      local.set_port(static_cast<uint16_t>(sockets.port + lane));
      Result<std::unique_ptr<UdpHub>> hub = UdpHub::make(local, *udp);
      *retry = true;
      if (!hub.ok()) return hub.status();
      hubs.push_back(std::move(hub.value()));
    }
  }
  return sockets;
}

}  // namespace

Result<Sockets> open_sockets(const SettingValues& settings, bool with_udp, const UdpOptions& udp, uint32_t buffers_min) {
  Result<std::vector<Address>> found = addresses(settings.listen);
  if (!found.ok()) return found.status();
  UdpOptions each = udp;
  each.buffers = std::max(buffers_min, udp.buffers / (settings.lanes * static_cast<uint32_t>(found->size())));
  for (int tries = 1;; ++tries) {
    bool retry = false;
    Result<Sockets> sockets = open_at(settings.port, found.value(), settings.lanes, with_udp ? &each : nullptr, &retry);
    if (sockets.ok() || settings.port != 0 || !retry || tries == kPortTries) return sockets;
  }
}

}  // namespace gatun
