// ControlServer: the sockets of the control channel. It feeds Membership with what arrives and carries what Membership says.
//
// Every connection is bounded: what it may have unsent, how long it may take to close. A peer that does not read, sends
// nonsense or floods loses its own connection only. One thread; nothing here is on the datapath.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/base/log.h"
#include "host/base/os.h"
#include "protocols/control.h"
#include "protocols/membership.h"

namespace gatun {

class ControlServer {
 public:
  explicit ControlServer(const Log* log) : log_(log) {}

  // Before the first wait().
  void serve(Membership* membership) { membership_ = membership; }

  // Listening sockets, non-blocking.
  Status open(std::vector<Fd> listeners);
  // Another descriptor to be watched (level-triggered); wait() reports it.
  Status watch(int fd);

  // Waits for events until deadline and feeds Membership; ready gets the watched descriptors that are readable.
  void wait(TimeNs deadline, std::vector<int>* ready);
  // Carries out poll_send() and poll_close().
  void obey();
  // After on_stop(): sends what is left and waits for the peers to have read it, until deadline.
  void drain(TimeNs deadline);
  uint32_t connections() const { return static_cast<uint32_t>(connections_.size()); }

 private:
  struct Connection {
    Fd fd;
    control::Parser parser;
    std::vector<std::byte> out;
    size_t out_begin = 0;
    bool closing = false;  // shut down once everything is sent
    bool wants_write = false;
    TimeNs close_at = kNever;
  };

  Status watch(int fd, uint64_t tag);
  void accept_all(int listener);
  void read(ConnId id);
  void write(ConnId id, Connection& connection);
  void drop(ConnId id, const std::string& why);
  void expire(TimeNs now);

  Membership* membership_ = nullptr;
  const Log* log_;
  Fd epoll_;
  Fd spare_;  // given up for a moment when there are no descriptors left, to turn a caller away
  std::vector<Fd> listeners_;
  std::vector<int> watched_;
  std::map<ConnId, Connection> connections_;
  ConnId next_id_ = 1;
};

}  // namespace gatun
