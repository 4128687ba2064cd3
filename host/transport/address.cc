#include "host/transport/address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>

namespace gatun {

Result<SocketAddress> SocketAddress::parse(const std::string& ip, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (::getaddrinfo(ip.c_str(), service.c_str(), &hints, &found) != 0 || found == nullptr) {
    return Status(Code::kInvalidArgument, "'" + ip + "' is not an IPv4 or IPv6 address; write it like 10.0.0.1 or fd00::1");
  }
  SocketAddress address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string SocketAddress::ip() const {
  char host[NI_MAXHOST] = "?";
  if (size > 0) ::getnameinfo(get(), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

std::string SocketAddress::text() const {
  const std::string host = ip();
  return (family() == AF_INET6 ? "[" + host + "]" : host) + ":" + std::to_string(port());
}

}  // namespace gatun
