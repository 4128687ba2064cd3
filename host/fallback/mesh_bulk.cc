#include "host/fallback/mesh_bulk.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

constexpr uint32_t kNoRank = 0xffff;
constexpr size_t kPieceBytes = 1 << 20;  // most of one system call, so that all connections get their turn
constexpr int kYields = 16;              // as many looks at the sockets before sleeping; others may need the core

// What is left of a frame from `moved` on, cut to one piece.
int rest_of(std::array<std::byte, Bulk::kHeaderBytes>& header, std::byte* data, size_t bytes, size_t moved, iovec* parts) {
  int count = 0;
  if (moved < Bulk::kHeaderBytes) parts[count++] = {header.data() + moved, Bulk::kHeaderBytes - moved};
  const size_t done = std::max(moved, Bulk::kHeaderBytes) - Bulk::kHeaderBytes;
  if (done < bytes) parts[count++] = {data + done, std::min(bytes - done, kPieceBytes)};
  return count;
}

}  // namespace

Bulk::Bulk(uint32_t rank, std::vector<Fd> fds, std::vector<std::string> texts)
    : rank_(rank), streams_(fds.size()), texts_(std::move(texts)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (size_t i = 0; i < fds.size(); ++i) streams_[i].fd = std::move(fds[i]);
  if (!wake_.valid()) error_ = system_error("create an eventfd", errno);
}

Bulk::Ticket Bulk::post_send(uint32_t rank, const void* data, size_t bytes, uint32_t label) {
  GATUN_CHECK(rank < streams_.size() && rank != rank_);
  Direction& out = streams_[rank].out;
  Post& post = out.posts.emplace_back();
  post.data = static_cast<std::byte*>(const_cast<void*>(data));
  post.bytes = bytes;
  post.label = label;
  put32(post.header.data(), label);
  put64(post.header.data() + 4, bytes);
  return ticket_of(rank, false, out.posted++);
}

Bulk::Ticket Bulk::post_receive(uint32_t rank, void* data, size_t bytes, uint32_t label) {
  GATUN_CHECK(rank < streams_.size() && rank != rank_);
  Direction& in = streams_[rank].in;
  Post& post = in.posts.emplace_back();
  post.data = static_cast<std::byte*>(data);
  post.bytes = bytes;
  post.label = label;
  return ticket_of(rank, true, in.posted++);
}

const Bulk::Direction& Bulk::direction_of(Ticket ticket) const {
  const Stream& stream = streams_[rank_of(ticket)];
  return ticket & 1 ? stream.in : stream.out;
}

bool Bulk::done(Ticket ticket) const {
  return ticket >> 17 < direction_of(ticket).finished();
}

bool Bulk::all_done() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& stream) { return stream.out.posts.empty() && stream.in.posts.empty(); });
}

Status Bulk::wait(Ticket ticket, TimeNs deadline) {
  return drive([&] { return done(ticket); }, deadline, ticket);
}

Status Bulk::wait_all(TimeNs deadline) {
  return drive([&] { return all_done(); }, deadline, ticket_of(kNoRank, false, 0));
}

template <typename Done>
Status Bulk::drive(Done&& is_done, TimeNs deadline, Ticket wanted) {
  int idle = 0;
  while (true) {
    if (interrupted_.load(std::memory_order_acquire) && error_.ok()) {
      std::lock_guard lock(reason_mutex_);
      error_ = reason_;
    }
    if (!error_.ok()) return error_;
    if (is_done()) return {};
    const bool moved = progress();
    if (!error_.ok() || is_done()) continue;
    const TimeNs now = now_ns();
    if (now >= deadline) {
      error_ = timeout(wanted);
      continue;
    }
    if (moved) {
      idle = 0;
      continue;
    }
    const bool patient = ++idle <= kYields;
    if (patient) ::sched_yield();
    sleep(patient ? 0 : deadline - now);
  }
}

bool Bulk::progress() {
  bool moved = false;
  // From this rank's right neighbour on, so that not all ranks serve rank 0 first.
  for (uint32_t i = 1; i < streams_.size() && error_.ok(); ++i) {
    const uint32_t rank = static_cast<uint32_t>((rank_ + i) % streams_.size());
    Stream& stream = streams_[rank];
    if (!stream.out.posts.empty() && !stream.out.blocked) moved |= send_some(rank);
    if (error_.ok() && !stream.in.posts.empty() && !stream.in.blocked) moved |= receive_some(rank);
  }
  return moved;
}

bool Bulk::send_some(uint32_t rank) {
  Direction& out = streams_[rank].out;
  Post& post = out.posts.front();
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(rest_of(post.header, post.data, post.bytes, post.moved, parts));
  const ssize_t sent = ::sendmsg(*streams_[rank].fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno == EINTR) return true;
    out.blocked = errno == EAGAIN || errno == EWOULDBLOCK;
    if (!out.blocked) fail_io(rank, errno);
    return false;
  }
  post.moved += static_cast<size_t>(sent);
  bytes_sent_.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
  if (post.moved == post.frame_bytes()) out.posts.pop_front();
  return true;
}

bool Bulk::receive_some(uint32_t rank) {
  Direction& in = streams_[rank].in;
  Post& post = in.posts.front();
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(rest_of(post.header, post.data, post.bytes, post.moved, parts));
  const ssize_t got = ::recvmsg(*streams_[rank].fd, &message, MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EINTR) return true;
    in.blocked = errno == EAGAIN || errno == EWOULDBLOCK;
    if (!in.blocked) fail_io(rank, errno);
    return false;
  }
  if (got == 0) {
    fail_io(rank, 0);
    return false;
  }
  post.moved += static_cast<size_t>(got);
  bytes_received_.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
  if (!post.checked && post.moved >= kHeaderBytes && !check_header(rank, post)) return false;
  if (post.moved == post.frame_bytes()) in.posts.pop_front();
  return true;
}

bool Bulk::check_header(uint32_t rank, Post& post) {
  post.checked = true;
  const uint32_t label = take32(post.header.data());
  const uint64_t bytes = take64(post.header.data() + 4);
  if (label == post.label && bytes == post.bytes) return true;
  fail(Code::kInternal, texts_[rank] + " sends " + std::to_string(bytes) + " bytes with label " + std::to_string(label) +
                            " where " + std::to_string(post.bytes) + " with label " + std::to_string(post.label) +
                            " are expected: the ranks do not run the same collective");
  return false;
}

void Bulk::sleep(TimeNs timeout) {
  std::vector<pollfd> polled;
  std::vector<uint32_t> ranks;
  polled.push_back({*wake_, POLLIN, 0});
  for (uint32_t rank = 0; rank < streams_.size(); ++rank) {
    const Stream& stream = streams_[rank];
    const int reads = stream.in.posts.empty() ? 0 : POLLIN, writes = stream.out.posts.empty() ? 0 : POLLOUT;
    const auto events = static_cast<short>(reads | writes);
    if (events == 0) continue;  // not even looked at: an end of the stream there may be in order
    polled.push_back({*stream.fd, events, 0});
    ranks.push_back(rank);
  }
  const timespec limit = {timeout / kSecond, timeout % kSecond};
  if (::ppoll(polled.data(), polled.size(), &limit, nullptr) <= 0) return;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const short events = polled[i + 1].revents;
    if (events & (POLLIN | POLLHUP | POLLERR)) streams_[ranks[i]].in.blocked = false;
    if (events & (POLLOUT | POLLHUP | POLLERR)) streams_[ranks[i]].out.blocked = false;
  }
}

void Bulk::interrupt(Status reason) {
  {
    std::lock_guard lock(reason_mutex_);
    if (!reason_.ok()) return;
    reason_ = reason.ok() ? Status(Code::kAborted, "the collective was interrupted") : std::move(reason);
  }
  interrupted_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(*wake_, &one, sizeof one);
}

void Bulk::fail(Code code, std::string text) {
  error_ = Status(code, std::move(text));
}

void Bulk::fail_io(uint32_t rank, int error) {
  const std::string what = texts_[rank] + " is gone in the middle of a collective: ";
  if (error == 0 || error == EPIPE) return fail(Code::kRankLost, what + "it closed its connection");
  fail(Code::kRankLost, what + system_error("move bytes", error).message());
}

Status Bulk::timeout(Ticket wanted) const {
  uint32_t rank = rank_of(wanted);
  bool receive = wanted & 1;
  for (uint32_t i = 0; rank == kNoRank && i < streams_.size(); ++i) {
    if (streams_[i].in.posts.empty() && streams_[i].out.posts.empty()) continue;
    rank = i;
    receive = !streams_[i].in.posts.empty();
  }
  const Direction& direction = receive ? streams_[rank].in : streams_[rank].out;
  const Post& post = direction.posts.front();
  return {Code::kTimeout, texts_[rank] + (receive ? " has not sent what the collective needs: " : " does not take: ") +
                              std::to_string(std::max(post.moved, kHeaderBytes) - kHeaderBytes) + " of " +
                              std::to_string(post.bytes) + " bytes came through before the deadline"};
}

}  // namespace gatun
