#include "host/transport/shm_door.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace gatun {

namespace {

constexpr uint32_t kMagic = 0x67736d01;  // "gsm", version 1
constexpr size_t kCallersMax = 64;
constexpr TimeNs kPatience = 2 * kSecond;  // for a caller to name its key
constexpr int kTicketFds = 4;

// Both ends are processes of one host: native byte order.
struct Request {
  uint32_t magic = kMagic;
  uint32_t rank = 0;
  uint64_t token = 0;
  uint32_t lane = 0;
  uint32_t reserved = 0;
};
struct Reply {
  uint32_t magic = kMagic;
  uint32_t granted = 0;
  uint32_t payload_bytes = 0;
  uint32_t slots = 0;
  uint64_t tx_bytes = 0;
  uint64_t result_bytes = 0;
};

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;
};

// Abstract: the first byte is zero, there is no file to clean up. An empty name asks the kernel for one.
bool make_name(const std::string& name, Name* out) {
  if (name.size() + 1 > sizeof(out->address.sun_path)) return false;
  out->address.sun_family = AF_UNIX;
  std::memcpy(out->address.sun_path + 1, name.data(), name.size());
  out->size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + (name.empty() ? 0 : 1 + name.size()));
  return true;
}

bool send_reply(int fd, const Reply& reply, const ShmTicket* ticket) {
  iovec vector{const_cast<Reply*>(&reply), sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(kTicketFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (ticket != nullptr) {
    const int fds[kTicketFds] = {ticket->region.get(), ticket->results.get(), ticket->up_bell.get(),
                                 ticket->down_bell.get()};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(rights), fds, sizeof(fds));
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply);
}

// Reads a reply and takes over every descriptor that came with it.
bool read_reply(int fd, Reply* reply, std::vector<Fd>* fds) {
  iovec vector{reply, sizeof(*reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed;
      std::memcpy(&passed, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(passed);
    }
  }
  return got == sizeof(*reply) && reply->magic == kMagic;
}

}  // namespace

Result<std::unique_ptr<ShmDoor>> ShmDoor::make(const std::string& name) {
  Name own;
  if (!make_name(name, &own)) return Status(Code::kInvalidArgument, "the socket name '" + name + "' is too long");
  Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  if (!listener.valid() || !epoll.valid() ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&own.address), own.size) != 0 ||
      ::listen(listener.get(), 128) != 0 || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &wanted) != 0) {
    const bool taken = errno == EADDRINUSE;
    return Status(Code::kSystem, "cannot listen on the unix socket '@" + name + "': " +
                                     (taken ? "another process has that name" : std::strerror(errno)));
  }
  own.size = sizeof(own.address);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own.address), &own.size);
  const size_t length = own.size - offsetof(sockaddr_un, sun_path) - 1;
  return std::unique_ptr<ShmDoor>(
      new ShmDoor(std::string(own.address.sun_path + 1, length), std::move(listener), std::move(epoll)));
}

ShmDoor::ShmDoor(std::string name, Fd listener, Fd epoll)
    : name_(std::move(name)), listener_(std::move(listener)), epoll_(std::move(epoll)) {}

void ShmDoor::offer(const ShmKey& key, ShmTicket ticket) {
  withdraw(key);
  offers_.push_back({key, std::move(ticket)});
}

bool ShmDoor::withdraw(const ShmKey& key) {
  return std::erase_if(offers_, [&](const Offer& offer) { return offer.key == key; }) > 0;
}

void ShmDoor::withdraw_all(uint64_t token) {
  std::erase_if(offers_, [&](const Offer& offer) { return offer.key.token == token; });
}

int ShmDoor::serve(TimeNs now) {
  admit(now);
  int given = 0;
  std::erase_if(callers_, [&](Caller& caller) {
    bool done = now - caller.since > kPatience;
    given += answer(caller, &done);
    return done;
  });
  return given;
}

// Callers that say nothing make room for new ones, the oldest first.
void ShmDoor::admit(TimeNs now) {
  for (size_t i = 0; i < kCallersMax; ++i) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &wanted) != 0) continue;
    if (callers_.size() == kCallersMax) callers_.erase(callers_.begin());
    callers_.push_back({std::move(fd), now});
  }
}

// Returns 1 if a ticket was given. *done: nothing more is to be said to this caller.
int ShmDoor::answer(Caller& caller, bool* done) {
  Request request;
  const ssize_t got = ::recv(caller.fd.get(), &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  *done = true;
  if (got != sizeof(request) || request.magic != kMagic) return 0;
  const ShmKey key{request.token, request.rank, request.lane};
  const auto offer = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& o) { return o.key == key; });
  Reply reply;
  if (offer == offers_.end()) {
    send_reply(caller.fd.get(), reply, nullptr);
    return 0;
  }
  const ShmShape& shape = offer->ticket.shape;
  reply.granted = 1;
  reply.payload_bytes = shape.payload_bytes;
  reply.slots = shape.slots;
  reply.tx_bytes = shape.tx_bytes;
  reply.result_bytes = shape.result_bytes;
  if (!send_reply(caller.fd.get(), reply, &offer->ticket)) return 0;
  offers_.erase(offer);
  return 1;
}

Result<ShmTicket> shm_connect(const std::string& name, const ShmKey& key, TimeNs timeout) {
  const std::string where = "shared memory of gatund (unix socket '@" + name + "'): ";
  Name peer;
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid() || !make_name(name, &peer)) {
    return Status(Code::kSystem, where + (fd.valid() ? "the name is too long" : std::strerror(errno)));
  }
  const timeval limit{.tv_sec = timeout / kSecond, .tv_usec = timeout % kSecond / kUs + 1};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // also of connect
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer.address), peer.size) != 0) {
    const bool absent = errno == ECONNREFUSED;
    return Status(Code::kSystem, where + (absent ? "nobody listens there; is this process in another network namespace or "
                                                   "container than gatund? Then use transport udp"
                                                 : std::strerror(errno)));
  }
  const Request request{.rank = key.rank, .token = key.token, .lane = key.lane};
  pollfd ready{.fd = fd.get(), .events = POLLIN};
  Reply reply;
  std::vector<Fd> fds;
  if (::send(fd.get(), &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request) ||
      ::poll(&ready, 1, static_cast<int>(std::min<TimeNs>(timeout / kMs + 1, INT32_MAX))) <= 0 ||
      !read_reply(fd.get(), &reply, &fds)) {
    return Status(Code::kTimeout, where + "no answer");
  }
  if (reply.granted == 0 || fds.size() != kTicketFds) {
    return Status(Code::kRefused, where + "it has no link for rank " + std::to_string(key.rank) + " of this job (any more)");
  }
  ShmTicket ticket;
  ticket.shape = {reply.payload_bytes, reply.slots, reply.tx_bytes, reply.result_bytes};
  ticket.region = std::move(fds[0]);
  ticket.results = std::move(fds[1]);
  ticket.up_bell = std::move(fds[2]);
  ticket.down_bell = std::move(fds[3]);
  return ticket;
}

}  // namespace gatun
