#include "host/fallback/mesh_connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <string>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

// HELLO: magic, u8 version, u8 kind, u16 0, u32 rank of the sender, u32 rank it wants, u32 ranks, cookie of rank 0's card.
// ANSWER: magic, u8 version, 3 bytes 0, u32 own rank, cookie of one's own card.
// Magic and version stand first in every version: who hears another one answers with its own, and without a cookie.
constexpr char kMagic[] = "gatunmsh";
constexpr uint8_t kVersion = 2;
constexpr size_t kMagicBytes = 8, kBeginningBytes = kMagicBytes + 1, kCookieBytes = 32;
constexpr size_t kHelloBytes = kMagicBytes + 4 + 12 + kCookieBytes;
constexpr size_t kAnswerBytes = kMagicBytes + 4 + 4 + kCookieBytes;
enum Kind : uint8_t { kMessages = 0, kBulk = 1, kKinds = 2, kLooks = kKinds };

constexpr TimeNs kStrangerPatience = 5 * kSecond;  // for a HELLO; a rank sends it with its connection
constexpr size_t kPendingMax = 256;                // connections without a HELLO; the oldest gives way
constexpr TimeNs kRetry = 50 * kMs;
constexpr TimeNs kLook = 500 * kMs;    // at higher ranks, which ought to call: do they still listen?
constexpr TimeNs kGone = 2 * kSecond;  // a rank listens before it tells its card, and as long as it needs its mesh
constexpr int kNoDescriptorsMs = 10;

constexpr int kKeepIdleSeconds = 5, kKeepIntervalSeconds = 3, kKeepProbes = 5;
constexpr unsigned kUserTimeoutMs = 20'000;

// A host that is cut off ends the connection within 20 s. Not for bulk: a stopped process that does not read would end it as
// well, and there every wait has a deadline of its own.
void tune(int fd, uint8_t kind) {
  auto set = [&](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  if (kind == kMessages) ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

std::string versions_differ(unsigned other) {
  return "speaks version " + std::to_string(other) + " of the mesh, this rank speaks " + std::to_string(kVersion) +
         ": give all ranks the same version of Gatun";
}

class Setup {
 public:
  Setup(const MeshListener& listener, uint32_t rank, const std::vector<MeshCard>& cards, TimeNs deadline)
      : listener_(listener), rank_(rank), cards_(cards), deadline_(deadline) {
    for (auto& fds : ready_) fds.resize(cards.size());
    for (uint32_t peer = 0; peer < rank; ++peer) {
      for (uint8_t kind = 0; kind < kKinds; ++kind) calls_.push_back({peer, kind});
    }
    const TimeNs look_at = now_ns() + kLook;
    for (uint32_t peer = rank + 1; peer < cards.size(); ++peer) {
      calls_.push_back({.peer = peer, .kind = kLooks, .retry_at = look_at});
    }
  }

  Result<MeshConnections> run() {
    while (true) {
      const TimeNs now = now_ns();
      for (Call& call : calls_) {
        if (call.state == Call::kIdle && now >= call.retry_at) start(call);
      }
      std::erase_if(calls_,
                    [&](Call& call) { return call.state == Call::kDone || (call.kind == kLooks && here(call.peer)); });
      if (missing().empty()) return MeshConnections{std::move(ready_[kMessages]), std::move(ready_[kBulk])};
      if (!failure_.ok()) return failure_;
      if (const Call* call = gone(now)) return died(*call);
      if (now >= deadline_) return timeout();
      const TimeNs oldest = now - kStrangerPatience;
      std::erase_if(pending_, [&](Pending& pending) { return pending.since <= oldest; });
      poll_once(now);
    }
  }

 private:
  // A connection to a lower rank.
  struct Call {
    uint32_t peer = 0;
    uint8_t kind = 0;
    enum State { kIdle, kConnecting, kAnswer, kDone } state = kIdle;
    TimeNs retry_at = 0;
    TimeNs refused_since = kNever;
    Fd fd;
    std::array<std::byte, kAnswerBytes> answer{};
    size_t got = 0;
    std::string last_trouble;
  };
  // A connection that has not yet said who it is.
  struct Pending {
    Fd fd;
    TimeNs since = 0;
    std::array<std::byte, kHelloBytes> hello{};
    size_t got = 0;
  };

  void poll_once(TimeNs now) {
    std::vector<pollfd> polled = {{listener_.fd(), POLLIN, 0}};
    std::vector<Call*> calls;
    std::vector<Pending*> pendings;
    TimeNs until = deadline_;
    for (Call& call : calls_) {
      if (call.state == Call::kIdle) {
        until = std::min(until, call.retry_at);
        continue;
      }
      polled.push_back({*call.fd, static_cast<short>(call.state == Call::kConnecting ? POLLOUT : POLLIN), 0});
      calls.push_back(&call);
    }
    for (Pending& pending : pending_) {
      until = std::min(until, pending.since + kStrangerPatience);
      polled.push_back({*pending.fd, POLLIN, 0});
      pendings.push_back(&pending);
    }
    const TimeNs left = std::clamp<TimeNs>(until - now, 0, kSecond);
    if (::poll(polled.data(), polled.size(), static_cast<int>((left + kMs - 1) / kMs)) <= 0) return;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (polled[1 + i].revents != 0) advance(*calls[i]);
    }
    for (size_t i = 0; i < pendings.size(); ++i) {
      if (polled[1 + calls.size() + i].revents != 0 && !hear(*pendings[i])) pendings[i]->since = INT64_MIN;
    }
    std::erase_if(pending_, [](Pending& pending) { return pending.since == INT64_MIN; });
    if (polled[0].revents != 0) accept_all();
  }

  // --- connections to lower ranks ---

  void start(Call& call) {
    const Endpoint& endpoint = cards_[call.peer].endpoint;
    call.fd = Fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!call.fd.valid()) return again(call, errno);
    call.got = 0;
    tune(*call.fd, call.kind);
    if (::connect(*call.fd, endpoint.address(), endpoint.size) == 0) return greet(call);
    if (errno != EINPROGRESS) return again(call, errno);
    call.state = Call::kConnecting;
  }

  void advance(Call& call) {
    if (call.state == Call::kConnecting) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(*call.fd, SOL_SOCKET, SO_ERROR, &error, &size);
      return error == 0 ? greet(call) : again(call, error);
    }
    const ssize_t got = ::recv(*call.fd, call.answer.data() + call.got, kAnswerBytes - call.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) return again(call, got < 0 ? errno : ECONNRESET);
    call.got += static_cast<size_t>(got);
    const std::byte* at = call.answer.data();
    const MeshCard& card = cards_[call.peer];
    if (const auto other = other_version(call.answer, call.got)) {
      failure_ = Status(Code::kRefused, card.text(call.peer) + " " + versions_differ(*other));
      return;
    }
    if (call.got < kAnswerBytes) return;
    if (std::memcmp(at, kMagic, kMagicBytes) != 0 || take32(at + kMagicBytes + 4) != call.peer ||
        std::memcmp(at + kMagicBytes + 8, card.cookie.data(), kCookieBytes) != 0) {
      return again(call, EPROTO);
    }
    ready_[call.kind][call.peer] = std::move(call.fd);
    call.state = Call::kDone;
  }

  void greet(Call& call) {
    if (call.kind == kLooks) {  // it lives
      call.fd.reset();
      call.state = Call::kIdle;
      call.refused_since = kNever;
      call.retry_at = now_ns() + kLook;
      return;
    }
    std::array<std::byte, kHelloBytes> hello{};
    std::byte* at = hello.data();
    std::memcpy(at, kMagic, kMagicBytes);
    at[kMagicBytes] = std::byte{kVersion};
    at[kMagicBytes + 1] = std::byte{call.kind};
    put32(at + kMagicBytes + 4, rank_);
    put32(at + kMagicBytes + 8, call.peer);
    put32(at + kMagicBytes + 12, static_cast<uint32_t>(cards_.size()));
    std::memcpy(at + kMagicBytes + 16, cards_[0].cookie.data(), kCookieBytes);
    // A socket that has sent nothing yet takes this much whole.
    if (::send(*call.fd, at, kHelloBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kHelloBytes)) return again(call, errno);
    call.state = Call::kAnswer;
  }

  void again(Call& call, int error) {
    char buffer[128];
    call.last_trouble = error == EPROTO       ? "something else answers there"
                        : error == ECONNRESET ? "it was turned away"
                                              : strerror_r(error, buffer, sizeof buffer);
    call.refused_since = error == ECONNREFUSED ? std::min(call.refused_since, now_ns()) : kNever;
    call.fd.reset();
    call.state = Call::kIdle;
    call.retry_at = now_ns() + kRetry;
  }

  // --- connections from higher ranks, and from strangers ---

  void accept_all() {
    while (true) {
      Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) {
        // Out of descriptors: the oldest stranger gives one back.
        if (errno != EMFILE && errno != ENFILE) return;
        if (pending_.empty()) {
          ::poll(nullptr, 0, kNoDescriptorsMs);
          return;
        }
        pending_.pop_front();
        continue;
      }
      if (pending_.size() >= kPendingMax) pending_.pop_front();
      Pending& pending = pending_.emplace_back();
      pending.fd = std::move(fd);
      pending.since = now_ns();
      if (!hear(pending)) pending_.pop_back();
    }
  }

  // False when it is settled, either way.
  bool hear(Pending& pending) {
    const ssize_t got = ::recv(*pending.fd, pending.hello.data() + pending.got, kHelloBytes - pending.got, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (got == 0) return false;
    pending.got += static_cast<size_t>(got);
    if (std::memcmp(pending.hello.data(), kMagic, std::min(pending.got, kMagicBytes)) != 0) return false;
    if (const auto other = other_version(pending.hello, pending.got)) {
      stranger_version_ = other;
      std::byte unread[256];  // would turn the orderly end into a reset, and the answer be lost
      [[maybe_unused]] const ssize_t rest = ::recv(*pending.fd, unread, sizeof unread, MSG_DONTWAIT);
      [[maybe_unused]] const bool told = answer(pending, "");
      return false;
    }
    if (pending.got == kHelloBytes) {
      welcome(pending);
      return false;
    }
    return true;
  }

  // None: it is the same, or not known yet.
  static std::optional<unsigned> other_version(std::span<const std::byte> bytes, size_t got) {
    if (got < kBeginningBytes || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0) return {};
    const auto version = std::to_integer<uint8_t>(bytes[kMagicBytes]);
    return version == kVersion ? std::nullopt : std::optional<unsigned>(version);
  }

  bool answer(const Pending& pending, const std::string& cookie) {
    std::array<std::byte, kAnswerBytes> bytes{};
    std::memcpy(bytes.data(), kMagic, kMagicBytes);
    bytes[kMagicBytes] = std::byte{kVersion};
    put32(bytes.data() + kMagicBytes + 4, rank_);
    std::memcpy(bytes.data() + kMagicBytes + 8, cookie.data(), cookie.size());
    return ::send(*pending.fd, bytes.data(), kAnswerBytes, MSG_NOSIGNAL) == static_cast<ssize_t>(kAnswerBytes);
  }

  void welcome(Pending& pending) {
    const std::byte* at = pending.hello.data();
    const uint8_t kind = std::to_integer<uint8_t>(at[kMagicBytes + 1]);
    const uint32_t peer = take32(at + kMagicBytes + 4);
    if (kind >= kKinds || peer <= rank_ || peer >= cards_.size() || take32(at + kMagicBytes + 8) != rank_ ||
        take32(at + kMagicBytes + 12) != cards_.size() ||
        std::memcmp(at + kMagicBytes + 16, cards_[0].cookie.data(), kCookieBytes) != 0) {
      return;
    }
    tune(*pending.fd, kind);
    if (!answer(pending, cards_[rank_].cookie)) return;
    ready_[kind][peer] = std::move(pending.fd);  // a second time: the rank has given up its first connection
  }

  // --- the end ---

  bool here(uint32_t peer) const { return ready_[kMessages][peer].valid() && ready_[kBulk][peer].valid(); }

  std::vector<uint32_t> missing() const {
    std::vector<uint32_t> ranks;
    for (uint32_t peer = 0; peer < cards_.size(); ++peer) {
      if (peer != rank_ && !here(peer)) ranks.push_back(peer);
    }
    return ranks;
  }

  const Call* gone(TimeNs now) const {
    const auto dead = [&](const Call& call) { return call.refused_since != kNever && now >= call.refused_since + kGone; };
    const auto found = std::find_if(calls_.begin(), calls_.end(), dead);
    return found == calls_.end() ? nullptr : &*found;
  }

  Status died(const Call& call) const {
    const MeshCard& card = cards_[call.peer];
    return {Code::kRankLost, card.text(call.peer) + " has died while the ranks connect with each other: nobody listens at " +
                                 card.endpoint.text() + " any more" + stranger()};
  }

  Status timeout() const {
    std::string text;
    for (uint32_t peer : missing()) {
      text += (text.empty() ? "no connection in time between rank " + std::to_string(rank_) + " and " : ", ") +
              cards_[peer].text(peer) + " at " + cards_[peer].endpoint.text();
      for (const Call& call : calls_) {
        if (call.peer != peer || call.last_trouble.empty()) continue;
        text += " [" + call.last_trouble + "]";
        break;
      }
    }
    return {Code::kTimeout,
            text + ": check that these processes run and that no firewall is between the hosts" + stranger()};
  }

  std::string stranger() const {
    return stranger_version_ ? "; a rank that called " + versions_differ(*stranger_version_) : "";
  }

  const MeshListener& listener_;
  const uint32_t rank_;
  const std::vector<MeshCard>& cards_;
  const TimeNs deadline_;
  std::vector<Call> calls_;
  std::list<Pending> pending_;
  std::array<std::vector<Fd>, kKinds> ready_;
  std::optional<unsigned> stranger_version_;  // of the last caller that speaks another
  Status failure_;
};

}  // namespace

Result<MeshConnections> connect_mesh(const MeshListener& listener, uint32_t rank, const std::vector<MeshCard>& cards,
                                     TimeNs deadline) {
  return Setup(listener, rank, cards, deadline).run();
}

}  // namespace gatun
