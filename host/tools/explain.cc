#include "host/tools/explain.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host/tools/settings_flags.h"
#include "host/tools/trial.h"

namespace gatun {
namespace {

void print_settings(const Settings& settings) {
  for (const char* key : {"address", "transport", "device", "fallback", "rendezvous", "detect"}) {
    const Settings::Origin& origin = settings.origin(key);
    fmt::print("  {:<10} {:<22} {}\n", key, origin.text, origin.where);
  }
  std::fflush(stdout);  // what follows can take a while where a switch does not answer
}

void print_outcome(const Settings& settings, const Outcome& outcome) {
  const gatun_stats_t& stats = outcome.stats;
  if (outcome.code != GATUN_SUCCESS) {
    fmt::print("\nOperations fail: {}\n", outcome.error);
    return;
  }
  if (stats.why[0] != 0) {
    const bool exact = std::strcmp(stats.transport, "exact") == 0;
    fmt::print("\nOperations go without a switch ({}): {}\n",
               exact ? "exact: by direct exchange, with the bits that a switch would give" : "ring", stats.why);
    fmt::print("A job looks for the switch while it runs, and goes over to it when all its ranks have joined there.\n");
    return;
  }
  fmt::print("\nOperations go through the switch at {} over {}: ", stats.address, stats.transport);
  fmt::print("packets of {} payload bytes, {} in flight on each of {} tree{}.\n", stats.payload_bytes, stats.window,
             stats.trees, stats.trees == 1 ? "" : "s");
  const bool off = settings.values().fallback == "off";
  fmt::print("If it dies, they {}.\n", off ? "fail, as fallback is off" : "go on without it");
}

}  // namespace

int explain_main(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = given;
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::printf(
        "Usage: gatun explain [SETTINGS]\n\nWhich way a job's operations take with these settings on this host, and why. "
        "It finds out by joining as\na job of two ranks, which leaves again.\n\n%s",
        Settings::help().c_str());
    return 0;
  }
  Settings settings;
  if (const Status status = take_setting_flags(&arguments, &settings); !status.ok()) {
    std::fprintf(stderr, "gatun explain: %s\n", status.message());
    return 2;
  }
  if (!arguments.empty()) {
    std::fprintf(stderr, "gatun explain: unknown argument '%s'; gatun explain --help lists the settings\n",
                 arguments[0].c_str());
    return 2;
  }
  setenv("GATUN_LOG", "error", 0);
  print_settings(settings);
  const Outcome outcome =
      try_job({.job = fmt::format("{}-explain-{}", settings.values().job.substr(0, 100), ::getpid())});
  print_outcome(settings, outcome);
  return outcome.code == GATUN_SUCCESS ? 0 : 1;
}

}  // namespace gatun
