// A gatund of the test's own, as a process: started on one port, killed, stopped, continued, terminated and started again.
// It is ended by its process id.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/os.h"

namespace gatun {

class GatundProcess {
 public:
  // Takes a free port of this loopback address; serves when it returns.
  explicit GatundProcess(const std::string& ip = "127.0.0.1");
  ~GatundProcess() { end(); }
  GatundProcess(const GatundProcess&) = delete;

  void start(const std::vector<std::string>& flags = {});  // on the same port
  void end();                                              // kill -9, if it runs
  std::string terminate();                                 // SIGTERM; "", or what is wrong with how it ended
  bool fell() const;                                       // it was started, and has ended by itself
  std::string said() const;                                // on stderr; shown there too if it fell
  void signal(int number) const;
  pid_t pid() const { return pid_; }
  std::string address() const { return ip_ + ":" + std::to_string(port_); }

 private:
  std::string ip_;
  Fd stderr_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

// A port of this loopback address that nobody listens at now.
uint16_t free_port(const std::string& ip = "127.0.0.1");

}  // namespace gatun
