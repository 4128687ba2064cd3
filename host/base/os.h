// Small doors to the operating system that the daemon, the transports and the library share. Linux only.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

// Owns a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }
  int operator*() const { return fd_; }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1);
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

TimeNs now_ns();        // CLOCK_MONOTONIC
uint64_t random_u64();  // from the kernel, unguessable

std::string host_name();
// The same text on two processes exactly if they share memory and abstract unix sockets: boot id and network namespace.
std::string host_identity();

// Status of a failed system call: "cannot WHAT: reason (errno text)".
Status system_error(const std::string& what, int error);

// A socket address of either family.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = 0;

  // A numeric address: "127.0.0.1", "::1", "fe80::1%eth0". kInvalidArgument if it is a name, or none.
  static Result<Endpoint> parse(const std::string& ip, uint16_t port);

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool loopback() const;
  std::string ip() const;    // "127.0.0.1", "::1"
  std::string text() const;  // "127.0.0.1:7117", "[::1]:7117"
};

// "host", "host:port", "[v6]", "[v6]:port", "v6"; the port is default_port when absent. kInvalidArgument says what is wrong.
Status split_address(const std::string& text, uint16_t default_port, std::string* host, uint16_t* port);
// All addresses of the text, in the resolver's order. Blocks as long as the resolver does.
Result<std::vector<Endpoint>> resolve(const std::string& text, uint16_t default_port);

}  // namespace gatun
