#include "host/fallback/mesh_messages.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kReadBytes = 64 << 10;
constexpr TimeNs kFlushMax = 500 * kMs;  // of the last messages at the end, when a peer does not read

// Behind "it".
std::string why_ended(int error) {
  switch (error) {
    case 0: return "closed its connection";
    case EPIPE:
    case ECONNRESET: return "reset its connection";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH: return "does not answer any more: its connection timed out";
    default: break;
  }
  char buffer[128];
  return std::string("lost its connection: ") + strerror_r(error, buffer, sizeof buffer);
}

}  // namespace

Messenger::Messenger(std::vector<Fd> fds) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (Fd& fd : fds) {
    peers_.push_back(fd.valid() ? std::make_unique<Peer>() : nullptr);
    if (peers_.back()) peers_.back()->fd = std::move(fd);
  }
}

Messenger::~Messenger() {
  stop();
  const TimeNs deadline = now_ns() + kFlushMax;
  while (true) {
    std::vector<pollfd> polled;
    for (auto& peer : peers_) {
      if (peer == nullptr) continue;
      std::lock_guard lock(peer->mutex);
      if (!write_some(*peer)) polled.push_back({*peer->fd, POLLOUT, 0});
    }
    const TimeNs now = now_ns();
    if (polled.empty() || now >= deadline) break;
    ::poll(polled.data(), polled.size(), static_cast<int>((deadline - now) / kMs) + 1);
  }
  for (auto& peer : peers_) {
    if (peer == nullptr) continue;
    ::shutdown(*peer->fd, SHUT_WR);
    // Bytes that nobody reads would turn the orderly end into a reset.
    std::byte unread[4096];
    for (int i = 0; i < 64 && ::recv(*peer->fd, unread, sizeof unread, MSG_DONTWAIT) > 0; ++i) {
    }
  }
}

void Messenger::run(Mesh::Events* events) {
  GATUN_CHECK(!thread_.joinable() && !stopping_);
  events_ = events;
  thread_ = std::thread([this] { loop(); });
}

void Messenger::stop() {
  stopping_ = true;
  wake();
  std::lock_guard lock(stop_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Messenger::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
}

void Messenger::send(uint32_t rank, std::span<const std::byte> message) {
  GATUN_CHECK(rank < peers_.size() && peers_[rank] != nullptr && message.size() <= Mesh::kMessageBytesMax);
  std::vector<std::byte> frame(kLengthBytes + message.size());
  put32(frame.data(), static_cast<uint32_t>(message.size()));
  std::copy(message.begin(), message.end(), frame.begin() + kLengthBytes);
  Peer& peer = *peers_[rank];
  std::lock_guard lock(peer.mutex);
  if (peer.broken) return;
  peer.queue.push_back(std::move(frame));
  if (peer.queue.size() == 1 && !write_some(peer)) wake();
}

bool Messenger::write_some(Peer& peer) {
  while (!peer.queue.empty()) {
    const std::vector<std::byte>& frame = peer.queue.front();
    const ssize_t wrote = ::send(*peer.fd, frame.data() + peer.sent, frame.size() - peer.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (wrote < 0) {  // the thread hears why when it reads
      peer.broken = true;
      peer.queue.clear();
      return true;
    }
    peer.sent += static_cast<size_t>(wrote);
    if (peer.sent < frame.size()) continue;
    peer.queue.pop_front();
    peer.sent = 0;
  }
  return true;
}

void Messenger::loop() {
  std::vector<pollfd> polled;
  std::vector<uint32_t> ranks;
  while (!stopping_) {
    polled.assign(1, {*wake_, POLLIN, 0});
    ranks.clear();
    for (uint32_t rank = 0; rank < peers_.size(); ++rank) {
      Peer* peer = peers_[rank].get();
      if (peer == nullptr || peer->ended) continue;
      std::lock_guard lock(peer->mutex);
      polled.push_back({*peer->fd, static_cast<short>(peer->queue.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      ranks.push_back(rank);
    }
    if (::poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(*wake_, &count, sizeof count);
    }
    for (size_t i = 0; i < ranks.size() && !stopping_; ++i) {
      const short events = polled[i + 1].revents;
      Peer& peer = *peers_[ranks[i]];
      if (events & POLLOUT) {
        std::lock_guard lock(peer.mutex);
        write_some(peer);
      }
      if (events & (POLLIN | POLLHUP | POLLERR)) read_some(ranks[i]);
    }
  }
}

// One read, so that no rank keeps the others waiting. False if the connection has ended.
bool Messenger::read_some(uint32_t rank) {
  Peer& peer = *peers_[rank];
  const size_t had = peer.in.size();
  peer.in.resize(had + kReadBytes);
  const ssize_t got = ::recv(*peer.fd, peer.in.data() + had, kReadBytes, MSG_DONTWAIT);
  const int error = errno;
  peer.in.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0) return deliver(rank);
  if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)) return true;
  end(rank, why_ended(got < 0 ? error : 0));
  return false;
}

bool Messenger::deliver(uint32_t rank) {
  Peer& peer = *peers_[rank];
  size_t at = 0;
  while (!stopping_ && peer.in.size() - at >= kLengthBytes) {
    const size_t bytes = take32(peer.in.data() + at);
    if (bytes > Mesh::kMessageBytesMax) {
      end(rank, "sent a message of " + std::to_string(bytes) + " bytes, which is too long");
      return false;
    }
    if (peer.in.size() - at - kLengthBytes < bytes) break;
    events_->on_mesh_message(rank, std::span(peer.in.data() + at + kLengthBytes, bytes));
    at += kLengthBytes + bytes;
  }
  peer.in.erase(peer.in.begin(), peer.in.begin() + static_cast<ptrdiff_t>(at));
  return true;
}

void Messenger::end(uint32_t rank, const std::string& why) {
  Peer& peer = *peers_[rank];
  peer.ended = true;
  {
    std::lock_guard lock(peer.mutex);
    peer.broken = true;
    peer.queue.clear();
  }
  if (!stopping_) events_->on_mesh_end(rank, why);
}

}  // namespace gatun
