// SocketAddress: a numeric IPv4 or IPv6 address with a port, as sockets take it and as people read it.
//
// Names are not resolved here: whoever accepts host names resolves them before a transport is made.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "protocols/status.h"

namespace gatun {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  // "127.0.0.1", "::1", "fe80::1%eth0". Errors: kInvalidArgument.
  static Result<SocketAddress> parse(const std::string& ip, uint16_t port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  std::string ip() const;
  std::string text() const;  // "127.0.0.1:7117", "[::1]:7117"
};

}  // namespace gatun
