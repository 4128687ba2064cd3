// Child processes that cannot be left behind: each dies with this process, is waited for by its id, and is killed when its
// owner ends early.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace gatun::perf {

class Children {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this process and takes them from a descriptor instead.
  Children();
  ~Children();  // kills what is left and waits for it
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  struct Exit {
    pid_t pid = 0;
    bool signalled = false;
    int value = 0;             // exit code or signal
    std::string text() const;  // "was killed by signal 9 (Killed)", "ended with code 1"
  };

  // Runs body in a child, which ends with its return value.
  pid_t fork_body(const std::function<int()>& body);
  // Runs a program; what it writes to stderr (and to stdout if both) can be read from *output. -1: *error says why.
  pid_t spawn(const std::vector<std::string>& command, bool both, int* output, std::string* error);

  // Waits until a child has ended, one of fds is readable, a signal asks to stop, or timeout_ms is over.
  enum class Event { kExit, kReadable, kStop, kTimeout };
  Event wait(const std::vector<int>& fds, int timeout_ms, Exit* exit);

  void send(pid_t pid, int signal);  // only to children of ours that are still there
  bool running(pid_t pid) const;
  size_t count() const { return pids_.size(); }
  int stop_signal() const { return stop_signal_; }  // which signal asked to stop; 0: none

 private:
  bool reap(Exit* exit);
  [[noreturn]] void become(const std::vector<std::string>& command, int output, bool both);

  std::vector<pid_t> pids_;
  int signal_fd_ = -1;
  int stop_signal_ = 0;
};

}  // namespace gatun::perf
