// ShmDoor: where a worker fetches the memory of its link, over an abstract unix socket of the daemon.
//
// The control thread offers a ticket under a key that only the worker was told; the worker connects, names the key, gets
// the descriptors by SCM_RIGHTS and the connection ends. A ticket is given once. Strangers get nothing and cost a bounded
// number of descriptors for a bounded time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/transport/shm_port.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

struct ShmKey {
  uint64_t token = 0;  // unguessable
  uint32_t rank = 0;
  uint32_t lane = 0;
  bool operator==(const ShmKey&) const = default;
};

class ShmDoor {
 public:
  // An empty name lets the system choose one. Names are seen by every process in the same network namespace.
  static Result<std::unique_ptr<ShmDoor>> make(const std::string& name);

  const std::string& name() const { return name_; }
  int wait_fd() const { return epoll_.get(); }  // readable (level-triggered): call serve()

  void offer(const ShmKey& key, ShmTicket ticket);
  bool withdraw(const ShmKey& key);    // false if it was fetched or never there
  void withdraw_all(uint64_t token);   // of a job that ended
  size_t offers() const { return offers_.size(); }

  // Serves whoever stands at the door, without blocking, and returns the number of tickets given out.
  int serve(TimeNs now);

 private:
  struct Offer {
    ShmKey key;
    ShmTicket ticket;
  };
  struct Caller {
    Fd fd;
    TimeNs since = 0;
  };
  ShmDoor(std::string name, Fd listener, Fd epoll);
  void admit(TimeNs now);
  int answer(Caller& caller, bool* done);

  std::string name_;
  Fd listener_;
  Fd epoll_;
  std::vector<Offer> offers_;
  std::vector<Caller> callers_;  // connected, their key not yet read
};

// The worker's side: fetches its ticket. Blocks at most timeout.
Result<ShmTicket> shm_connect(const std::string& name, const ShmKey& key, TimeNs timeout);

}  // namespace gatun
