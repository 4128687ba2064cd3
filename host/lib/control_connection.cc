#include "host/lib/control_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "host/base/settings.h"

namespace gatun {
namespace {

constexpr TimeNs kRetry = 50 * kMs;
constexpr TimeNs kLookAtStop = 100 * kMs;

// Waits until the descriptor is ready or the time has come; false then.
bool wait_ready(int fd, short events, TimeNs deadline) {
  while (true) {
    const TimeNs left = deadline - now_ns();
    if (left <= 0) return false;
    pollfd wanted{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::min<TimeNs>(left / kMs + 1, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the next call on it says what is wrong
  }
}

// 0 or an errno. ETIMEDOUT also when the time has come.
int try_connect(const Endpoint& endpoint, TimeNs deadline, Fd* out) {
  Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  if (::connect(*fd, endpoint.address(), endpoint.size) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_ready(*fd, POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    if (error != 0) return error;
  }
  const int on = 1;
  ::setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  *out = std::move(fd);
  return 0;
}

bool is_numeric(const std::string& host) {
  unsigned char buffer[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), buffer) == 1 || ::inet_pton(AF_INET6, host.c_str(), buffer) == 1 ||
         host.find('%') != std::string::npos;
}

Status connect_error(const std::string& address, const Endpoint& endpoint, int error, TimeNs waited) {
  std::string host;
  uint16_t port = 0;
  const bool named = split_address(address, kDefaultPort, &host, &port).ok() && !is_numeric(host) && host != "localhost";
  const std::string where = endpoint.text();
  if (named && endpoint.loopback()) {
    return {Code::kSwitchLost, "host name '" + host + "' is the loopback address " + where +
                                   " on this host, and no gatund answers "
                                   "there: correct /etc/hosts, or give the switch's IP address in GATUN_ADDRESS"};
  }
  if (error == ECONNREFUSED) {
    return {Code::kSwitchLost,
            "no gatund at " + where + " (connection refused): start one with `gatund`, or set GATUN_ADDRESS"};
  }
  if (error == ETIMEDOUT) {
    return {Code::kSwitchLost, "no answer from " + where + " within " + format_duration(std::max(waited / kMs * kMs, kMs)) +
                                   ": check GATUN_ADDRESS, and that no firewall drops TCP port " +
                                   std::to_string(endpoint.port()) +
                                   (waited < kSecond ? ", or set a longer GATUN_JOIN_TIMEOUT" : "")};
  }
  return {Code::kSwitchLost,
          std::string(system_error("connect to gatund at " + where, error).message()) + "; check GATUN_ADDRESS"};
}

}  // namespace

Result<std::unique_ptr<ControlConnection>> ControlConnection::connect(const std::string& address, TimeNs deadline,
                                                                      TimeNs grace) {
  Result<std::vector<Endpoint>> endpoints = resolve(address, kDefaultPort);
  if (!endpoints.ok()) return endpoints.status();
  const TimeNs begin = now_ns();
  bool refused = false;
  while (true) {
    int error = 0;
    for (const Endpoint& endpoint : endpoints.value()) {
      Fd fd;
      error = try_connect(endpoint, deadline, &fd);
      if (error == 0) return std::unique_ptr<ControlConnection>(new ControlConnection(std::move(fd), endpoint));
    }
    refused = refused || error == ECONNREFUSED;
    if (refused && error == ETIMEDOUT) error = ECONNREFUSED;  // no time was left for the last try
    const TimeNs now = now_ns();
    if (error != ECONNREFUSED || now >= std::min(deadline, begin + grace)) {
      return connect_error(address, endpoints.value().back(), error, now - begin);
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRetry));
  }
}

Endpoint ControlConnection::local() const {
  Endpoint own;
  own.size = sizeof own.storage;
  ::getsockname(*fd_, own.address(), &own.size);
  return own;
}

Status ControlConnection::write(const control::Message& message) {
  control::encode(message, &out_);
  return flush();
}

Status ControlConnection::flush() {
  while (sent_ < out_.size()) {
    const ssize_t wrote = ::send(*fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (wrote < 0) return {Code::kSwitchLost, std::string(system_error("write to gatund at " + name_, errno).message())};
    sent_ += static_cast<size_t>(wrote);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

Status ControlConnection::read() {
  std::byte bytes[4096];
  const ssize_t got = ::recv(*fd_, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got > 0) {
    parser_.push(std::span(bytes, static_cast<size_t>(got)));
    return {};
  }
  if (got == 0) {
    return {Code::kSwitchLost,
            "gatund at " + name_ + " closed the connection: it was stopped or killed, or its log says why"};
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
  return {Code::kSwitchLost, "the connection to gatund at " + name_ + " broke: " + system_error("read", errno).message()};
}

control::Parser::Next ControlConnection::next(control::Message* message, Status* why) {
  const control::Parser::Next next = parser_.next(message);
  if (next == control::Parser::Next::kError) *why = Status(Code::kSwitchLost, name_ + " " + parser_.error());
  return next;
}

Status ControlConnection::wait_message(control::Message* message, TimeNs deadline, const std::atomic<bool>* stop) {
  while (true) {
    Status status;
    switch (next(message, &status)) {
      case control::Parser::Next::kMessage: return {};
      case control::Parser::Next::kError: return status;
      case control::Parser::Next::kMore: break;
    }
    const short events = static_cast<short>(POLLIN | (unsent() ? POLLOUT : 0));
    const TimeNs now = now_ns();
    if (stop && stop->load()) return {Code::kAborted, "the join at " + name_ + " was called off"};
    if (now >= deadline) return {Code::kTimeout, "gatund at " + name_ + " did not answer in time"};
    if (!wait_ready(*fd_, events, stop ? std::min(deadline, now + kLookAtStop) : deadline)) continue;
    if (unsent()) status = flush();
    if (status.ok()) status = read();
    if (!status.ok()) return status;
  }
}

}  // namespace gatun
