#include "host/fallback/rendezvous_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "host/fallback/rendezvous_wire.h"

namespace gatun {
namespace {

namespace wire = rendezvous_wire;

constexpr TimeNs kStrangerPatience = 5 * kSecond;
constexpr size_t kStrangersMax = 256;
constexpr size_t kStrangerBytesMax = 8192;    // of a HELLO
constexpr size_t kStoredBytesMax = 64 << 20;  // of all keys and values together
constexpr TimeNs kFarewell = 1 * kSecond;
constexpr TimeNs kLookAtStop = 100 * kMs;
constexpr TimeNs kFarAway = 3600 * kSecond;

std::chrono::nanoseconds until(TimeNs deadline) {
  return std::chrono::nanoseconds(std::clamp<TimeNs>(deadline - now_ns(), 0, kFarAway));
}

}  // namespace

RendezvousServer::RendezvousServer(Fd listener, std::string job, uint32_t ranks)
    : listener_(std::move(listener)),
      job_(std::move(job)),
      ranks_(ranks),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { loop(); }) {}

RendezvousServer::~RendezvousServer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
  thread_.join();
}

void RendezvousServer::set(const std::string& key, const std::string& value) {
  {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    gave_.insert(0);
  }
  changed_.notify_all();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
}

bool RendezvousServer::get(const std::string& key, TimeNs deadline, std::string* value) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto found = values_.find(key);
    if (found != values_.end()) {
      *value = found->second;
      return true;
    }
    if (now_ns() >= deadline) return false;
    changed_.wait_for(lock, until(deadline));
  }
}

void RendezvousServer::wait_for_ranks(TimeNs deadline, const std::atomic<bool>* stop) {
  const auto stopped = [&] { return stop && stop->load(); };
  const auto wait = [&](std::unique_lock<std::mutex>& lock, TimeNs end) {
    changed_.wait_for(lock, until(stop ? std::min(end, now_ns() + kLookAtStop) : end));
  };
  std::unique_lock lock(mutex_);
  while (!stopped() && left_.size() + 1 < ranks_ && now_ns() < deadline) wait(lock, deadline);
  const TimeNs last = std::max(deadline, now_ns()) + kFarewell;
  while (!stopped() && left_.size() < came_.size() && now_ns() < last) wait(lock, last);
}

void RendezvousServer::loop() {
  std::vector<pollfd> polled;
  while (true) {
    TimeNs now = now_ns(), next = now + kFarAway;
    polled.assign({{*wake_, POLLIN, 0}, {*listener_, POLLIN, 0}});
    for (Client& client : clients_) {
      if (client.rank == 0) next = std::min(next, client.since + kStrangerPatience);
      if (client.asks) next = std::min(next, client.until);
      polled.push_back({*client.fd, static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    ::poll(polled.data(), polled.size(), static_cast<int>((std::max<TimeNs>(next - now, 0) + kMs - 1) / kMs));
    if (polled[0].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(*wake_, &count, sizeof count);
    }
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    now = now_ns();
    size_t i = 2;
    for (Client& client : clients_) {
      const short events = polled[i++].revents;
      if (events & POLLOUT) write(client);
      if (events & (POLLIN | POLLHUP | POLLERR)) read(client, now);
      if (client.rank == 0 && now - client.since >= kStrangerPatience) client.closed = true;
    }
    if (polled[1].revents != 0) accept_all(now);
    answer_gets(now);
    for (Client& client : clients_) {
      if (client.closed) end(client);
    }
    std::erase_if(clients_, [](const Client& client) { return client.closed; });
  }
}

void RendezvousServer::accept_all(TimeNs now) {
  while (true) {
    Fd fd(::accept4(*listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 10);
      return;
    }
    size_t strangers = 0;
    for (Client& client : clients_) strangers += client.rank == 0 && !client.closed;
    if (strangers >= kStrangersMax) {
      std::find_if(clients_.begin(), clients_.end(), [](Client& c) { return c.rank == 0 && !c.closed; })->closed = true;
    }
    Client& client = clients_.emplace_back();
    client.fd = std::move(fd);
    client.since = now;
    read(client, now);
  }
}

void RendezvousServer::read(Client& client, TimeNs now) {
  std::byte bytes[16384];
  const ssize_t got = ::recv(*client.fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) {
    client.closed = true;
    return;
  }
  client.in.insert(client.in.end(), bytes, bytes + got);
  size_t at = 0;
  while (!client.closed && !client.last_word && client.in.size() - at >= wire::kLengthBytes) {
    const size_t frame = take32(client.in.data() + at);
    if (frame == 0 || frame > (client.rank == 0 ? kStrangerBytesMax : wire::kFrameBytesMax)) {
      client.closed = true;
      return;
    }
    if (client.in.size() - at - wire::kLengthBytes < frame) break;
    if (!handle(client, std::span(client.in).subspan(at + wire::kLengthBytes, frame), now)) client.closed = true;
    at += wire::kLengthBytes + frame;
  }
  client.in.erase(client.in.begin(), client.in.begin() + static_cast<ptrdiff_t>(at));
}

bool RendezvousServer::handle(Client& client, std::span<const std::byte> frame, TimeNs now) {
  if (client.rank == 0) return hello(client, frame);
  FieldReader reader(frame);
  const uint8_t type = reader.u8();
  client.bye = type == wire::kBye;
  if (client.bye || client.asks) return false;  // one question at a time
  std::string key = reader.text();
  if (type == wire::kSet) {
    std::string value = reader.text(wire::kValueBytesMax);
    if (!reader.done()) return false;
    {
      std::lock_guard lock(mutex_);
      stored_bytes_ += key.size() + value.size();
      if (stored_bytes_ > kStoredBytesMax) return false;
      values_[key] = std::move(value);
      gave_.insert(client.rank);
    }
    changed_.notify_all();
    client.keys.push_back(std::move(key));
    client.out = wire::frame(wire::kWelcome);
    write(client);
    return true;
  }
  const uint32_t wait_ms = reader.u32();
  if (type != wire::kGet || !reader.done()) return false;
  client.asks = true;
  client.key = std::move(key);
  client.until = now + wait_ms * kMs;
  return true;
}

bool RendezvousServer::hello(Client& client, std::span<const std::byte> frame) {
  FieldReader reader(frame);
  if (reader.u8() != wire::kHello || reader.text() != wire::kMagic) return false;
  const uint8_t version = reader.u8();
  const uint32_t rank = reader.u32(), ranks = reader.u32();
  const std::string job = reader.text();
  if (!reader.done()) return false;
  std::string why;
  std::lock_guard lock(mutex_);
  if (version != wire::kVersion) {
    why = "it speaks version " + std::to_string(version) + " of the rendezvous, rank 0 speaks " +
          std::to_string(wire::kVersion) + ": install the same release of Gatun on all hosts";
  } else if (job != job_) {
    why = "it serves job '" + job_ + "'";
  } else if (ranks != ranks_) {
    why = "rank 0 says that the job has " + std::to_string(ranks_) + " ranks, not " + std::to_string(ranks);
  } else if (rank == 0 || rank >= ranks_) {
    why = "there is no other rank " + std::to_string(rank);
  } else if (!came_.insert(rank).second) {
    why = "rank " + std::to_string(rank) + " is already there";
  }
  client.last_word = !why.empty();
  if (why.empty()) client.rank = rank;
  client.out = why.empty() ? wire::frame(wire::kWelcome)
                           : wire::frame(wire::kRefused, [&](FieldWriter& fields) { fields.text(why); });
  write(client);
  return true;
}

void RendezvousServer::answer_gets(TimeNs now) {
  std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    if (!client.asks || client.closed) continue;
    auto found = values_.find(client.key);
    if (found == values_.end() && now < client.until) continue;
    client.asks = false;
    auto value = [&](FieldWriter& fields) { fields.text(found->second, wire::kValueBytesMax); };
    client.out = found != values_.end() ? wire::frame(wire::kValue, value) : wire::frame(wire::kAbsent);
    write(client);
  }
}

void RendezvousServer::write(Client& client) {
  while (!client.out.empty()) {
    const ssize_t wrote = ::send(*client.fd, client.out.data(), client.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) client.closed = true;
      return;
    }
    client.out.erase(client.out.begin(), client.out.begin() + wrote);
  }
  if (client.last_word) {
    ::shutdown(*client.fd, SHUT_WR);  // the rank reads the reason, then closes
  }
}

// The place of a rank that died is free again, unless others may have met it already.
void RendezvousServer::end(Client& client) {
  if (client.rank == 0) return;
  {
    std::lock_guard lock(mutex_);
    if (client.bye || gave_.size() == ranks_) {
      left_.insert(client.rank);
    } else {
      came_.erase(client.rank);
      gave_.erase(client.rank);
      for (const std::string& key : client.keys) values_.erase(key);
    }
  }
  changed_.notify_all();
}

}  // namespace gatun
