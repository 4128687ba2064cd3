// A gatund of the test's own, as a process: started on one port, killed, stopped, continued and started again. It is ended
// by its process id.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gatun {

class GatundProcess {
 public:
  GatundProcess();  // takes a free port; serves when it returns
  ~GatundProcess() { end(); }
  GatundProcess(const GatundProcess&) = delete;

  void start(const std::vector<std::string>& flags = {});  // on the same port
  void end();                                              // kill -9, if it runs
  void signal(int number) const;
  pid_t pid() const { return pid_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

// A port of 127.0.0.1 that nobody listens at now.
uint16_t free_port();

}  // namespace gatun
