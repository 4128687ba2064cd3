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
constexpr size_t kConnectionsMax = 8192;
constexpr TimeNs kCloseWait = 2 * kSecond;  // for a peer to take what was said last
// What epoll hands back: a connection's number, or (with the top bit) a descriptor.
constexpr uint64_t kDescriptor = uint64_t{1} << 63;

}  // namespace

Status ControlServer::open(std::vector<Fd> listeners) {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_error("create an epoll descriptor", errno);
  spare_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  listeners_ = std::move(listeners);
  for (const Fd& listener : listeners_) {
    if (Status status = watch(*listener, kDescriptor | static_cast<uint32_t>(*listener)); !status.ok()) return status;
  }
  return {};
}

Status ControlServer::watch(int fd) {
  watched_.push_back(fd);
  return watch(fd, kDescriptor | static_cast<uint32_t>(fd));
}

Status ControlServer::watch(int fd, uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  if (::epoll_ctl(*epoll_, EPOLL_CTL_ADD, fd, &event) != 0) return system_error("watch a descriptor", errno);
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
      if (errno == EINTR || errno == ECONNABORTED) continue;
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
    (void)::setsockopt(*fd, SOL_SOCKET, SO_KEEPALIVE, &on,
                       sizeof on);  // a rank that waits for others may vanish with its host
    // Membership turns away what is above its own limit; far above it nobody is even told.
    if (connections_.size() >= kConnectionsMax) continue;
    while (connections_.contains(next_id_)) ++next_id_;
    const ConnId id = next_id_++;
    if (!watch(*fd, id).ok()) continue;
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
  if (unsent == connection.wants_write) return;
  connection.wants_write = unsent;
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
  for (const int fd : watched_) (void)::epoll_ctl(*epoll_, EPOLL_CTL_DEL, fd, nullptr);  // the signal stays readable
  listeners_.clear();
  obey();
  // A peer that has read everything closes its side; closing ours first could take back what it has not read yet.
  while (now_ns() < deadline && !connections_.empty()) {
    wait(std::min(deadline, now_ns() + 50 * kMs), &ready);
    obey();
  }
}

}  // namespace gatun
