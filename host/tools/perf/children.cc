#include "host/tools/perf/children.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace gatun::perf {
namespace {

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

// In the child, right after fork: die with the parent, even if it has died already.
void tie_to_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const sigset_t set = watched_signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

std::string Children::Exit::text() const {
  if (!signalled) return "ended with code " + std::to_string(value);
  return "was killed by signal " + std::to_string(value) + " (" + strsignal(value) + ")";
}

Children::Children() {
  const sigset_t set = watched_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

Children::~Children() {
  for (const pid_t pid : pids_) kill(pid, SIGKILL);
  for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  close(signal_fd_);
}

pid_t Children::fork_body(const std::function<int()>& body) {
  std::fflush(stdout);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    tie_to_parent(parent);
    close(signal_fd_);
    const int code = body();
    std::fflush(stdout);
    _exit(code);
  }
  if (pid > 0) pids_.push_back(pid);
  return pid;
}

void Children::become(const std::vector<std::string>& command, int output, bool both) {
  if (both) dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "cannot run %s: %s\n", arguments[0], std::strerror(errno));
  _exit(127);
}

pid_t Children::spawn(const std::vector<std::string>& command, bool both, int* output, std::string* error) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    *error = std::string("cannot make a pipe: ") + std::strerror(errno);
    return -1;
  }
  std::fflush(stdout);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    tie_to_parent(parent);
    become(command, ends[1], both);
  }
  close(ends[1]);
  if (pid < 0) {
    *error = "cannot start " + command[0] + ": " + std::strerror(errno);
    close(ends[0]);
    return -1;
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  *output = ends[0];
  pids_.push_back(pid);
  return pid;
}

bool Children::reap(Exit* exit) {
  for (const pid_t pid : pids_) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != pid) continue;
    exit->pid = pid;
    exit->signalled = WIFSIGNALED(status);
    exit->value = exit->signalled ? WTERMSIG(status) : WEXITSTATUS(status);
    pids_.erase(std::find(pids_.begin(), pids_.end(), pid));
    return true;
  }
  return false;
}

Children::Event Children::wait(const std::vector<int>& fds, int timeout_ms, Exit* exit) {
  std::vector<pollfd> watched = {{signal_fd_, POLLIN, 0}};
  for (const int fd : fds) watched.push_back({fd, POLLIN, 0});
  if (poll(watched.data(), watched.size(), timeout_ms) < 0) return Event::kTimeout;
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) stop_signal_ = static_cast<int>(info.ssi_signo);
  }
  const bool readable =
      std::any_of(watched.begin() + 1, watched.end(), [](const pollfd& each) { return each.revents != 0; });
  if (readable) return Event::kReadable;  // before exits: last words come first
  if (reap(exit)) return Event::kExit;
  return stop_signal_ != 0 ? Event::kStop : Event::kTimeout;
}

void Children::send(pid_t pid, int signal) {
  if (running(pid)) kill(pid, signal);
}
bool Children::running(pid_t pid) const {
  return std::find(pids_.begin(), pids_.end(), pid) != pids_.end();
}

}  // namespace gatun::perf
