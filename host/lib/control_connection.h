// ControlConnection: the TCP stream to the controller, as messages. Connecting and the blocking calls of the join are here;
// afterwards one thread polls fd() and uses read(), next() and flush(), which never block.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "protocols/control.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class ControlConnection {
 public:
  // Tries every address of the name. A refused connection is tried again within the grace, since a daemon may be starting.
  static Result<std::unique_ptr<ControlConnection>> connect(const std::string& address, TimeNs deadline, TimeNs grace);

  int fd() const { return *fd_; }
  const Endpoint& peer() const { return peer_; }
  Endpoint local() const;  // this end
  const std::string& name() const { return name_; }  // "127.0.0.1:7117", for sentences

  // Queues a message and writes what the socket takes now.
  Status write(const control::Message& message);
  Status flush();
  bool unsent() const { return sent_ < out_.size(); }

  // Reads what is there. kSwitchLost when the stream has ended or broken.
  Status read();
  // The next message that has been read; kMore when there is none; kError: *why.
  control::Parser::Next next(control::Message* message, Status* why);

  // Blocking: the next message, or kTimeout. Soon after *stop is set (null: never) it returns kAborted.
  Status wait_message(control::Message* message, TimeNs deadline, const std::atomic<bool>* stop);

 private:
  ControlConnection(Fd fd, Endpoint peer) : fd_(std::move(fd)), peer_(peer), name_(peer.text()) {}

  Fd fd_;
  Endpoint peer_;
  std::string name_;
  control::Parser parser_;
  std::vector<std::byte> out_;
  size_t sent_ = 0;
};

}  // namespace gatun
