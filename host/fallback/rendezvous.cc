#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "host/fallback/rendezvous_server.h"
#include "host/fallback/rendezvous_wire.h"
#include "host/fallback/store.h"

namespace gatun {
namespace {

namespace wire = rendezvous_wire;

constexpr TimeNs kRetry = 50 * kMs;
constexpr TimeNs kAnswerMax = 2 * kSecond;  // beyond the time that the server was asked to wait: it is gone
constexpr uint16_t kDefaultPort = 7118;     // beside the daemon's
constexpr TimeNs kWaitMax = 1000 * kSecond;

class ServerStore : public Store {
 public:
  ServerStore(Fd listener, const std::string& job, uint32_t ranks, TimeNs deadline, const std::atomic<bool>* stop)
      : server_(std::move(listener), job, ranks), deadline_(deadline), stop_(stop) {}
  ~ServerStore() override { server_.wait_for_ranks(deadline_, stop_); }

  Status set(const std::string& key, const std::string& value) override {
    server_.set(key, value);
    return {};
  }
  Result<std::string> get(const std::string& key, TimeNs deadline) override {
    std::string value;
    if (server_.get(key, deadline, &value)) return value;
    return Status(Code::kTimeout, "nobody has set '" + key + "' in time");
  }

 private:
  RendezvousServer server_;
  const TimeNs deadline_;
  const std::atomic<bool>* stop_;
};

bool wait_ready(int fd, short events, TimeNs deadline) {
  while (true) {
    const TimeNs left = deadline - now_ns();
    if (left <= 0) return false;
    pollfd polled = {fd, events, 0};
    if (::poll(&polled, 1, static_cast<int>(std::min<TimeNs>(left / kMs + 1, 1000))) > 0) return true;
  }
}

class ClientStore : public Store {
 public:
  explicit ClientStore(std::string address) : address_(std::move(address)) {}
  ~ClientStore() override {
    const std::vector<std::byte> bye = wire::frame(wire::kBye);
    if (fd_.valid()) (void)::send(*fd_, bye.data(), bye.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // One attempt. kRefused: another job is served there.
  Status join(const std::vector<Endpoint>& endpoints, const std::string& job, uint32_t rank, uint32_t ranks,
              TimeNs deadline) {
    Status failed;
    for (const Endpoint& endpoint : endpoints) {
      failed = connect(endpoint, deadline);
      if (failed.ok()) break;
    }
    if (!failed.ok()) return failed;
    std::vector<std::byte> answer;
    const auto hello = wire::frame(wire::kHello, [&](FieldWriter& fields) {
      fields.text(wire::kMagic);
      fields.u8(wire::kVersion);
      fields.u32(rank);
      fields.u32(ranks);
      fields.text(job);
    });
    if (Status status = ask(hello, deadline, &answer); !status.ok()) return status;
    FieldReader reader(answer);
    const uint8_t type = reader.u8();
    if (type == wire::kWelcome) return {};
    if (type != wire::kRefused) return lost("says something that is not understood");
    return {Code::kRefused, "the rendezvous at " + address_ + " does not take rank " + std::to_string(rank) + " of job '" +
                                job + "': " + reader.text()};
  }

  Status set(const std::string& key, const std::string& value) override {
    if (value.size() > wire::kValueBytesMax) {
      return {Code::kInvalidArgument, "the value of '" + key + "' is longer than the rendezvous takes"};
    }
    std::vector<std::byte> answer;
    const auto question = wire::frame(wire::kSet, [&](FieldWriter& fields) {
      fields.text(key);
      fields.text(value, wire::kValueBytesMax);
    });
    if (Status status = ask(question, now_ns() + kAnswerMax, &answer); !status.ok()) return status;
    return answer[0] == std::byte{wire::kWelcome} ? Status() : lost("says something that is not understood");
  }

  Result<std::string> get(const std::string& key, TimeNs deadline) override {
    const TimeNs now = now_ns();
    const TimeNs wait = std::clamp<TimeNs>(deadline - now, 0, kWaitMax);
    std::vector<std::byte> answer;
    const auto question = wire::frame(wire::kGet, [&](FieldWriter& fields) {
      fields.text(key);
      fields.u32(static_cast<uint32_t>(wait / kMs));
    });
    if (Status status = ask(question, now + wait + kAnswerMax, &answer); !status.ok()) return status;
    FieldReader reader(answer);
    const uint8_t type = reader.u8();
    if (type == wire::kAbsent) return Status(Code::kTimeout, "nobody has set '" + key + "' in time");
    std::string value = reader.text(wire::kValueBytesMax);
    if (type != wire::kValue || !reader.done()) return lost("says something that is not understood");
    return value;
  }

 private:
  Status lost(const std::string& what) {
    fd_.reset();
    return {Code::kRankLost, "rank 0's rendezvous at " + address_ + " " + what};
  }

  Status connect(const Endpoint& endpoint, TimeNs deadline) {
    fd_ = Fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_.valid()) return system_error("create a socket", errno);
    int error = ::connect(*fd_, endpoint.address(), endpoint.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (!wait_ready(*fd_, POLLOUT, deadline)) return lost("does not answer");
      socklen_t size = sizeof error;
      ::getsockopt(*fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error != 0) return system_error("connect to rank 0's rendezvous at " + endpoint.text(), error);
    const int on = 1;
    ::setsockopt(*fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return {};
  }

  // The answer without its length; at least one byte.
  Status ask(const std::vector<std::byte>& question, TimeNs deadline, std::vector<std::byte>* answer) {
    if (!fd_.valid()) return lost("is gone");
    for (size_t sent = 0; sent < question.size();) {
      const ssize_t wrote = ::send(*fd_, question.data() + sent, question.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (wrote >= 0) {
        sent += static_cast<size_t>(wrote);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
        if (!wait_ready(*fd_, POLLOUT, deadline)) return lost("does not answer");
      } else {
        return lost("has closed the connection");
      }
    }
    std::byte length[wire::kLengthBytes];
    if (Status status = read(length, sizeof length, deadline); !status.ok()) return status;
    const size_t bytes = take32(length);
    if (bytes == 0 || bytes > wire::kFrameBytesMax) return lost("says something that is not understood");
    answer->resize(bytes);
    return read(answer->data(), bytes, deadline);
  }

  Status read(std::byte* to, size_t bytes, TimeNs deadline) {
    for (size_t at = 0; at < bytes;) {
      const ssize_t got = ::recv(*fd_, to + at, bytes - at, MSG_DONTWAIT);
      if (got > 0) {
        at += static_cast<size_t>(got);
      } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (!wait_ready(*fd_, POLLIN, deadline)) return lost("does not answer");
      } else {
        return lost("has closed the connection");
      }
    }
    return {};
  }

  const std::string address_;
  Fd fd_;
};

Result<Fd> listen_at(const std::vector<Endpoint>& endpoints) {
  Status failed;
  for (const Endpoint& endpoint : endpoints) {
    Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd.valid()) ::setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd.valid() && ::bind(*fd, endpoint.address(), endpoint.size) == 0 && ::listen(*fd, SOMAXCONN) == 0) return fd;
    failed = system_error("serve the rendezvous at " + endpoint.text(), errno);
  }
  return failed;
}

void pause_before_retry(TimeNs deadline) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp<TimeNs>(deadline - now_ns(), 0, kRetry)));
}

}  // namespace

Result<std::unique_ptr<Store>> open_rendezvous(const std::string& address, const std::string& job, uint32_t rank,
                                               uint32_t ranks, TimeNs deadline, const std::atomic<bool>* stop) {
  Result<std::vector<Endpoint>> endpoints = resolve(address, kDefaultPort);
  if (!endpoints.ok()) return endpoints.status();
  Status known;
  while (true) {
    Status failed;
    if (rank == 0) {
      Result<Fd> listener = listen_at(endpoints.value());
      if (listener.ok()) {
        return std::unique_ptr<Store>(
            std::make_unique<ServerStore>(std::move(listener.value()), job, ranks, deadline, stop));
      }
      failed = listener.status();
    } else {
      auto store = std::make_unique<ClientStore>(address);
      const TimeNs until = stop ? std::min(deadline, now_ns() + kAnswerMax / 2) : deadline;
      failed = store->join(endpoints.value(), job, rank, ranks, until);
      if (failed.ok()) return std::unique_ptr<Store>(std::move(store));
    }
    if (stop && stop->load()) return Status(Code::kAborted, "the rendezvous was called off");
    const bool in_time = now_ns() < deadline;
    if (in_time || known.ok()) known = std::move(failed);  // an attempt that the deadline cut short says nothing
    if (in_time) {
      pause_before_retry(deadline);
      continue;
    }
    const bool refused = known.code() == Code::kRefused;
    return Status(refused ? Code::kRefused : Code::kTimeout,
                  std::string(known.message()) +
                      (rank == 0 ? "; set GATUN_RENDEZVOUS to a free port of this host"
                                 : "; check GATUN_RENDEZVOUS, and that rank 0 runs with the same job name and size"));
  }
}

}  // namespace gatun
