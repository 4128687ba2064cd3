// gatund: the aggregation daemon. Without arguments it serves this machine.
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "host/base/log.h"
#include "host/base/os.h"
#include "host/base/settings.h"
#include "switch_model/daemon/daemon.h"

namespace {

using namespace gatun;

constexpr const char* kUsage =
    "usage: gatund [--SETTING VALUE]... [--port-file PATH]\n"
    "\n"
    "Sums the gradients of training jobs. Without arguments it serves this machine.\n"
    "\n"
    "  --config PATH      read settings from this file\n"
    "  --port-file PATH   write the control port there once it serves (with --port 0)\n"
    "  --print-config     print a settings file with every key and its default\n"
    "  --version, --help\n"
    "\n"
    "SIGTERM or Ctrl-C stops it after the jobs have been told; SIGUSR1 logs its counters.\n"
    "\n";

struct Flags {
  std::string port_file;
  bool help = false, version = false, print_config = false;
};

// What is left of the arguments after the settings took theirs.
Status take_flags(const std::vector<std::string>& args, Flags* flags) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      flags->help = true;
    } else if (arg == "--version") {
      flags->version = true;
    } else if (arg == "--print-config") {
      flags->print_config = true;
    } else if (arg == "--port-file") {
      flags->port_file = ++i < args.size() ? args[i] : "";
      if (flags->port_file.empty()) return {Code::kInvalidArgument, "--port-file needs a path"};
    } else if (arg.rfind("--port-file=", 0) == 0) {
      flags->port_file = arg.substr(12);
      if (flags->port_file.empty()) return {Code::kInvalidArgument, "--port-file needs a path"};
    } else {
      const std::string near = arg.rfind("--", 0) == 0 ? Settings::nearest(arg.substr(2, arg.find('=') - 2)) : "";
      return {Code::kInvalidArgument, "unknown argument '" + arg + "'" +
                                          (near.empty() ? "" : ", did you mean --" + near + "?") + " (see gatund --help)"};
    }
  }
  return {};
}

Status write_port(const std::string& path, uint16_t port) {
  // Written aside and renamed, so that a reader never sees half of it.
  const std::string aside = path + ".new";
  std::FILE* file = std::fopen(aside.c_str(), "w");
  if (!file) return system_error("write the port to " + path, errno);
  std::fprintf(file, "%u\n", port);
  if (std::fclose(file) != 0 || std::rename(aside.c_str(), path.c_str()) != 0) {
    return system_error("write the port to " + path, errno);
  }
  return {};
}

// A connection is one descriptor and an shm link six; the soft limit is for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// Before the first thread, so that all of them leave these signals to the descriptor.
Fd take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

int main(int argc, char** argv) {
  Log log("gatund");
  std::vector<std::string> args(argv + 1, argv + argc);
  Settings settings;
  const Status loaded = settings.load(&args);
  Flags flags;
  const Status taken = take_flags(args, &flags);
  if (flags.help) {
    std::fputs((kUsage + Settings::help()).c_str(), stdout);
    return 0;
  }
  if (flags.version) {
    std::puts("gatund " GATUN_VERSION_TEXT);
    return 0;
  }
  if (flags.print_config) {
    std::fputs(Settings::sample_file().c_str(), stdout);
    return 0;
  }
  for (const Status* status : {&loaded, &taken}) {
    if (status->ok()) continue;
    log.error("%s", status->message());
    return 2;
  }
  log.set_level(log_level(settings.values().log));
  for (const std::string& warning : settings.warnings()) log.warn("%s", warning.c_str());

  raise_descriptor_limit();
  const Fd signal_fd = take_signals();
  auto daemon = Daemon::make(settings, &log);
  Status status = daemon.ok() ? Status() : daemon.status();
  if (status.ok() && !flags.port_file.empty()) status = write_port(flags.port_file, daemon.value()->port());
  if (status.ok()) {
    // Always shown: with port 0 there is no other way to know where it serves.
    std::fprintf(stderr, "gatund: %s %s\n", GATUN_VERSION_TEXT, daemon.value()->describe().c_str());
    status = daemon.value()->run(*signal_fd);
  }
  if (!status.ok()) {
    log.error("%s", status.message());
    return 1;
  }
  log.info("stopped");
  return 0;
}
