// Messenger: the Mesh's short messages. One thread sleeps in poll and reads all connections; send() writes at once what the
// socket takes, and leaves the rest to that thread. A message is a frame: u32 bytes, then the bytes.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/base/os.h"
#include "host/fallback/mesh.h"

namespace gatun {

class Messenger {
 public:
  // fds: a connected, non-blocking socket per rank, none for this one.
  explicit Messenger(std::vector<Fd> fds);
  // Stops, and gives what is still queued a short time to go out.
  ~Messenger();

  void run(Mesh::Events* events);
  void stop();
  void send(uint32_t rank, std::span<const std::byte> message);

 private:
  struct Peer {
    Fd fd;
    std::mutex mutex;  // of what send() shares with the thread
    std::deque<std::vector<std::byte>> queue;
    size_t sent = 0;      // of the queue's front
    bool broken = false;  // nothing can be written any more
    // The thread's own.
    bool ended = false;
    std::vector<std::byte> in;
  };

  void loop();
  bool write_some(Peer& peer);  // mutex held; true if the queue is empty now
  bool read_some(uint32_t rank);
  bool deliver(uint32_t rank);
  void end(uint32_t rank, const std::string& why);
  void wake();

  std::vector<std::unique_ptr<Peer>> peers_;  // none for this rank
  Fd wake_;
  std::atomic<bool> stopping_{false};
  Mesh::Events* events_ = nullptr;
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace gatun
