#include "switch_model/daemon/control_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gatun {
namespace {

constexpr size_t kUnsentBytesMax = 1 << 20;
constexpr int kBacklog = 1024;
constexpr TimeNs kCloseWait = 2 * kSecond;  // for a peer to take what was said last
// What epoll hands back: a connection's number, or (with the top bit) a descriptor.
constexpr uint64_t kDescriptor = uint64_t{1} << 63;

Result<Fd> open_listener(const Endpoint& address) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_error("open a TCP socket", errno);
  const int on = 1;
  (void)::setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) (void)::setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(*fd, address.address(), address.size) != 0 || ::listen(*fd, kBacklog) != 0) {
    const int error = errno;
    if (error != EADDRINUSE) return system_error("listen on " + address.text(), error);
    return Status(Code::kSystem, "port " + std::to_string(address.port()) + " is in use at " + address.text() +
                                     ", probably by another gatund: stop it, or choose another with --port (0 takes any free one)");
  }
  return fd;
}

}  // namespace

Status ControlServer::listen(const std::vector<Endpoint>& addresses) {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_error("create an epoll descriptor", errno);
  spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (Endpoint address : addresses) {
    if (address.port() == 0) address.set_port(port_);
    Result<Fd> listener = open_listener(address);
    if (!listener.ok()) return listener.status();
    Endpoint bound;
    bound.size = sizeof bound.storage;
    if (::getsockname(*listener.value(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
      return system_error("read the port of a socket", errno);
    }
    port_ = bound.port();
    listeners_.push_back(std::move(listener.value()));
    if (Status status = watch(*listeners_.back()); !status.ok()) return status;
    watched_.pop_back();
  }
  return {};
}

Status ControlServer::watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kDescriptor | static_cast<uint32_t>(fd)}};
  if (::epoll_ctl(*epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return system_error("watch a descriptor", errno);
  watched_.push_back(fd);
  return {};
}

void ControlServer::wait(TimeNs deadline, std::vector<int>* ready) {
  ready->clear();
  const TimeNs left = std::max<TimeNs>(0, deadline - now_ns());
  const int timeout_ms = static_cast<int>(std::min<TimeNs>(left / kMs + 1, 3'600'000));
  epoll_event events[64];
  const int count = ::epoll_wait(*epoll_, events, 64, left == 0 ? 0 : timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events[i].data.u64;
    if (!(data & kDescriptor)) {
      const ConnId id = static_cast<ConnId>(data);
      const auto found = connections_.find(id);
      if (found == connections_.end()) continue;
      if (events[i].events & EPOLLOUT) write(id, found->second);
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(id);
      continue;
    }
    const int fd = static_cast<int>(data & 0xffffffff);
    if (std::find(watched_.begin(), watched_.end(), fd) != watched_.end()) {
      ready->push_back(fd);
    } else {
      accept_all(fd);
    }
  }
  const TimeNs now = now_ns();
  expire(now);
  if (membership_->poll_timer() <= now) membership_->on_timer(now);
}

void ControlServer::accept_all(int listener) {
  while (true) {
    Endpoint peer;
    peer.size = sizeof peer.storage;
    Fd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE) return;
      // Without a descriptor the caller would stay in the queue and wake us for ever: turn it away.
      spare_.reset();
      Fd refused(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      refused.reset();
      spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      log_->warn("no file descriptors left: turned a connection away (raise the limit with ulimit -n)");
      return;
    }
    const int on = 1;
    (void)::setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const ConnId id = next_id_++;
    epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
    if (::epoll_ctl(*epoll_, EPOLL_CTL_ADD, *fd, &event) != 0) continue;
    connections_[id].fd = std::move(fd);
    membership_->on_open(id, peer.text(), now_ns());
  }
}

void ControlServer::read(ConnId id) {
  Connection& connection = connections_.at(id);
  std::byte bytes[16 * 1024];
  const ssize_t got = ::recv(*connection.fd, bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(id, got == 0 ? "" : std::strerror(errno));
  if (connection.closing) return;  // it has been told that this is the end
  connection.parser.push(std::span(bytes, static_cast<size_t>(got)));
  control::Message message;
  while (true) {
    switch (connection.parser.next(&message)) {
      case control::Parser::Next::kMessage: membership_->on_message(id, message, now_ns()); continue;
      case control::Parser::Next::kError: return membership_->on_malformed(id, connection.parser.error(), now_ns());
      case control::Parser::Next::kMore: return;
    }
  }
}

void ControlServer::drop(ConnId id, const std::string& why) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const bool known = !found->second.closing;
  connections_.erase(found);
  if (known) membership_->on_close(id, why, now_ns());
}

void ControlServer::obey() {
  ConnId id = 0;
  control::Message message;
  while (membership_->poll_send(&id, &message)) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    Connection& connection = found->second;
    control::encode(message, &connection.out);
    write(id, connection);
  }
  while (membership_->poll_close(&id)) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second.closing = true;
    found->second.close_at = now_ns() + kCloseWait;
    write(id, found->second);
  }
}

void ControlServer::write(ConnId id, Connection& connection) {
  while (connection.out_begin < connection.out.size()) {
    const ssize_t sent = ::send(*connection.fd, connection.out.data() + connection.out_begin,
                                connection.out.size() - connection.out_begin, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      break;
    }
    connection.out_begin += static_cast<size_t>(sent);
  }
  const bool unsent = connection.out_begin < connection.out.size();
  if (!unsent) {
    connection.out.clear();
    connection.out_begin = 0;
    // The peer sees the end behind the last message; its own close, or the clock, ends the connection.
    if (connection.closing) (void)::shutdown(*connection.fd, SHUT_WR);
  } else if (connection.out.size() - connection.out_begin > kUnsentBytesMax) {
    connection.close_at = 0;  // it does not read: expire() drops it
  }
  epoll_event event{.events = unsent ? EPOLLIN | EPOLLOUT : EPOLLIN, .data = {.u64 = id}};
  (void)::epoll_ctl(*epoll_, EPOLL_CTL_MOD, *connection.fd, &event);
}

void ControlServer::expire(TimeNs now) {
  std::vector<ConnId> late;
  for (const auto& [id, connection] : connections_) {
    if (connection.close_at <= now) late.push_back(id);
  }
  for (const ConnId id : late) drop(id, "does not read what it is sent");
}

void ControlServer::drain(TimeNs deadline) {
  std::vector<int> ready;
  auto unsent = [](const auto& entry) { return entry.second.out_begin < entry.second.out.size(); };
  obey();
  while (now_ns() < deadline && std::any_of(connections_.begin(), connections_.end(), unsent)) {
    wait(std::min(deadline, now_ns() + 50 * kMs), &ready);
    obey();
  }
}

}  // namespace gatun
