// gatun: the command of everything that is not the daemon. `gatun X` is built in, or the program gatun-X beside this one or
// in PATH, as git does it; `gatun X Y` is the program gatun-X-Y if there is one.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "host/tools/doctor/doctor.h"
#include "host/tools/explain.h"
#include "host/tools/info.h"
#include "host/tools/paths.h"
#include "host/tools/perf/perf.h"
#include "host/tools/version.h"

namespace {

struct Builtin {
  const char* name;
  int (*run)(const std::vector<std::string>& arguments);
  const char* help;
};
constexpr Builtin kBuiltins[] = {
    {"perf", gatun::perf_main, "benchmark and check the collectives; nccl-tests' flags and columns"},
    {"doctor", gatun::doctor_main, "what is missing on this host and the path to the switch, and what mends it"},
    {"explain", gatun::explain_main, "which way a job's operations take with these settings, and why"},
    {"info", gatun::info_main, "version, features, devices, the switch, and where each setting comes from"},
};

std::string subcommands() {
  std::string text;
  for (const Builtin& builtin : kBuiltins) text += std::string(text.empty() ? "" : ", ") + builtin.name;
  for (const std::string& name : gatun::external_subcommands()) text += ", " + name;
  return text;
}

void print_help() {
  std::printf("Usage: gatun COMMAND [FLAGS]\n\nCommands:\n");
  for (const Builtin& builtin : kBuiltins) std::printf("  %-8s %s\n", builtin.name, builtin.help);
  for (const std::string& name : gatun::external_subcommands()) {
    std::printf("  %-8s program gatun-%s\n", name.c_str(), name.c_str());
  }
  std::printf("\ngatun COMMAND --help describes a command; gatun --version prints the version.\n");
}

std::string external(const std::string& name) {
  return name.find('/') == std::string::npos ? gatun::find_program("gatun-" + name) : "";
}

int run_external(const std::string& name, std::vector<std::string> arguments) {
  std::string program = external(name);
  const std::string longer = arguments.empty() ? "" : external(name + "-" + arguments.front());
  if (!longer.empty()) {
    program = longer;
    arguments.erase(arguments.begin());
  }
  if (program.empty()) {
    std::fprintf(stderr, "gatun: no command '%s' (nor a program gatun-%s beside this one or in PATH); there are: %s\n",
                 name.c_str(), name.c_str(), subcommands().c_str());
    return 2;
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  std::fprintf(stderr, "gatun: cannot run %s: %s\n", program.c_str(), std::strerror(errno));
  return 126;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const std::string name = arguments.empty() ? "--help" : arguments.front();
  if (!arguments.empty()) arguments.erase(arguments.begin());
  if (name == "--help" || name == "-h" || name == "help") {
    print_help();
    return argc > 1 ? 0 : 2;
  }
  if (name == "--version" || name == "-V") {
    std::printf("gatun %s\n", gatun::version_text().c_str());
    return 0;
  }
  for (const Builtin& builtin : kBuiltins) {
    if (name == builtin.name) return builtin.run(arguments);
  }
  return run_external(name, arguments);
}
