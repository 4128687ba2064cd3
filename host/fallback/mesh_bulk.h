// Bulk: the Mesh's BulkStreams over one TCP connection per pair. A posted send is one frame, {u32 label, u64 bytes} and the
// bytes; it is received straight into the buffer that was posted for it.
//
// The thread that waits writes and reads on all connections that have something posted, without blocking; when nothing moves
// it yields a few times, then sleeps in poll until a socket, interrupt() or the deadline wakes it.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/fallback/bulk.h"

namespace gatun {

class Bulk {
 public:
  using Ticket = BulkStreams::Ticket;
  static constexpr size_t kHeaderBytes = 12;

  // fds: a connected, non-blocking socket per rank, none for this one. texts: who they are, for sentences.
  Bulk(uint32_t rank, std::vector<Fd> fds, std::vector<std::string> texts);

  Ticket post_send(uint32_t rank, const void* data, size_t bytes, uint32_t label);
  Ticket post_receive(uint32_t rank, void* data, size_t bytes, uint32_t label);
  Status wait(Ticket ticket, TimeNs deadline);
  Status wait_all(TimeNs deadline);
  bool done(Ticket ticket) const;
  void interrupt(Status reason);
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  struct Post {
    std::byte* data = nullptr;  // of a send only read
    size_t bytes = 0;
    uint32_t label = 0;
    std::array<std::byte, kHeaderBytes> header;
    size_t moved = 0;  // of header and data together
    bool checked = false;
    size_t frame_bytes() const { return kHeaderBytes + bytes; }
  };
  struct Direction {
    std::deque<Post> posts;
    uint64_t posted = 0;   // tickets given out
    bool blocked = false;  // the socket said so; poll tells when not
    uint64_t finished() const { return posted - posts.size(); }
  };
  struct Stream {
    Fd fd;
    Direction out, in;
  };

  static Ticket ticket_of(uint32_t rank, bool receive, uint64_t number) { return number << 17 | rank << 1 | receive; }
  static uint32_t rank_of(Ticket ticket) { return static_cast<uint32_t>(ticket >> 1) & 0xffff; }
  const Direction& direction_of(Ticket ticket) const;
  bool all_done() const;

  template <typename Done>
  Status drive(Done&& is_done, TimeNs deadline, Ticket wanted);
  bool progress();  // something moved; sets error_
  bool send_some(uint32_t rank);
  bool receive_some(uint32_t rank);
  bool check_header(uint32_t rank, Post& post);
  void sleep(TimeNs timeout);
  void fail(Code code, std::string text);
  void fail_io(uint32_t rank, int error);
  Status timeout(Ticket wanted) const;

  const uint32_t rank_;
  std::vector<Stream> streams_;
  const std::vector<std::string> texts_;
  Fd wake_;  // eventfd of interrupt()
  Status error_;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0};
  std::atomic<bool> interrupted_{false};
  std::mutex reason_mutex_;
  Status reason_;
};

}  // namespace gatun
