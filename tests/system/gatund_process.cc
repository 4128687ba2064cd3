#include "tests/system/gatund_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "host/base/os.h"
#include "protocols/status.h"

extern char** environ;

namespace gatun {
namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool answers(uint16_t port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return ::connect(*fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

uint16_t free_port() {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  GATUN_CHECK(::bind(*fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  GATUN_CHECK(::getsockname(*fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

GatundProcess::GatundProcess() : port_(free_port()) { start(); }

void GatundProcess::start(const std::vector<std::string>& flags) {
  GATUN_CHECK(pid_ < 0);
  std::vector<std::string> words{GATUND_PROGRAM, "--port", std::to_string(port_), "--metrics", "off", "--log", "error"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  GATUN_CHECK(::posix_spawn(&pid_, GATUND_PROGRAM, nullptr, nullptr, arguments.data(), environ) == 0);
  for (int tries = 0; tries < 1000 && !answers(port_); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void GatundProcess::end() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void GatundProcess::signal(int number) const {
  GATUN_CHECK(pid_ > 0);
  ::kill(pid_, number);
}

}  // namespace gatun
