#include "tests/system/gatund_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>
#include <utility>

#include "protocols/status.h"

extern char** environ;

namespace gatun {
namespace {

sockaddr_in address_of(const std::string& ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  GATUN_CHECK(::inet_pton(AF_INET, ip.c_str(), &address.sin_addr) == 1);
  return address;
}

bool answers(const std::string& ip, uint16_t port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(ip, port);
  return ::connect(*fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

uint16_t free_port(const std::string& ip) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = address_of(ip, 0);
  socklen_t size = sizeof address;
  GATUN_CHECK(::bind(*fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  GATUN_CHECK(::getsockname(*fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

GatundProcess::GatundProcess(const std::string& ip)
    : ip_(ip), stderr_(::memfd_create("gatund", MFD_CLOEXEC)), port_(free_port(ip)) {
  start();
}

void GatundProcess::start(const std::vector<std::string>& flags) {
  GATUN_CHECK(pid_ < 0);
  std::vector<std::string> words{GATUND_PROGRAM, "--port", std::to_string(port_), "--metrics", "off", "--log", "error"};
  if (ip_ != "127.0.0.1") words.insert(words.end(), {"--listen", ip_});
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  GATUN_CHECK(::posix_spawn_file_actions_init(&files) == 0 && ::posix_spawn_file_actions_adddup2(&files, *stderr_, 2) == 0);
  GATUN_CHECK(::posix_spawn(&pid_, GATUND_PROGRAM, &files, nullptr, arguments.data(), environ) == 0);
  ::posix_spawn_file_actions_destroy(&files);
  for (int tries = 0; tries < 1000 && !answers(ip_, port_); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void GatundProcess::end() {
  if (pid_ < 0) return;
  if (fell()) std::fprintf(stderr, "%s", said().c_str());
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string GatundProcess::terminate() {
  signal(SIGTERM);
  int status = 0;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return "gatund ended with status " + std::to_string(status) + " after SIGTERM";
}

bool GatundProcess::fell() const {
  siginfo_t info{};
  return pid_ > 0 && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

std::string GatundProcess::said() const {
  char text[4096];
  const ssize_t size = ::pread(*stderr_, text, sizeof text, std::max<off_t>(::lseek(*stderr_, 0, SEEK_END) - 4096, 0));
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

void GatundProcess::signal(int number) const {
  GATUN_CHECK(pid_ > 0);
  ::kill(pid_, number);
}

}  // namespace gatun
