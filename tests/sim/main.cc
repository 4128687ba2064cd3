// gatun-sim: runs the deterministic simulator. `gatun sim` is this program.
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/sim/runner.h"

namespace gatun::sim {
namespace {

constexpr char kHelp[] =
    "usage: gatun sim [--seeds N] [--first-seed S] [--seed S [--trace]] [--jobs K]\n"
    "\n"
    "Runs simulated clusters of workers and switches whose network loses, repeats, overtakes, damages and delays packets.\n"
    "Each seed is one run that can be repeated exactly.\n"
    "\n"
    "  --seeds N          how many seeds to run (default 1000)\n"
    "  --first-seed S     the first of them (default 1)\n"
    "  --seed S           run this one seed and describe it\n"
    "  --trace            with --seed: print every event\n"
    "  --jobs K           processes (default: one per core)\n"
    "  --kept FILE        first run the seeds listed in FILE, one a line\n"
    "  --require-marks    fail if some rare branch was never reached\n"
    "  --marks            print how often each rare branch was reached\n"
    "  --without A,B      leave these kinds of faults out: loss duplicate reorder spike corrupt truncate replay forge cut "
    "pause\n"
    "                     slow_switch mark mismatch kill crash suspect return death\n"
    "  --ranks N --trees N --levels N --ops N --lines N --epochs N\n"
    "                     upper limits, to make a failing run smaller\n";

struct Arguments {
  RunOptions run;
  bool one = false, trace = false, marks = false, require_marks = false;
  uint64_t seed = 0;
};

[[noreturn]] void usage_error(const std::string& what) {
  std::fprintf(stderr, "gatun-sim: %s\nTry --help.\n", what.c_str());
  std::exit(2);
}

uint64_t number(const std::string& option, const char* value) {
  if (!value) usage_error(option + " needs a number");
  char* end = nullptr;
  const unsigned long long parsed = std::strtoull(value, &end, 0);
  if (end == value || *end != 0 || *value == '-') usage_error(option + " needs a number, not '" + value + "'");
  return parsed;
}

uint32_t small_number(const std::string& option, const char* value) {
  const uint64_t parsed = number(option, value);
  if (parsed < 1 || parsed > 1000000) usage_error(option + " must be 1 to 1000000");
  return static_cast<uint32_t>(parsed);
}

uint32_t faults(const char* value) {
  if (!value) usage_error("--without needs names of faults");
  uint32_t bits = 0;
  std::string rest = value;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string word = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    int i = 0;
    while (i < kFaults && word != name(static_cast<Fault>(i))) ++i;
    if (i == kFaults) usage_error("there is no fault named '" + word + "'");
    bits |= 1u << i;
  }
  return bits;
}

void read_kept(const char* path, std::vector<uint64_t>* seeds) {
  if (!path) usage_error("--kept needs a file");
  std::ifstream file(path);
  if (!file) usage_error(std::string("cannot read ") + path);
  std::string line;
  while (std::getline(file, line)) {
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(" \t") + 1);
    if (!line.empty()) seeds->push_back(number(path, line.c_str()));
  }
}

// Options with a value; false if there is no such option.
bool take_value(const std::string& option, const char* value, Arguments* a) {
  struct Limit {
    const char* option;
    uint32_t Limits::*field;
  };
  static constexpr Limit kLimits[] = {{"--ranks", &Limits::ranks},   {"--trees", &Limits::trees},
                                      {"--levels", &Limits::levels}, {"--ops", &Limits::ops},
                                      {"--lines", &Limits::lines},   {"--epochs", &Limits::epochs}};
  for (const Limit& limit : kLimits) {
    if (option != limit.option) continue;
    a->run.limits.*limit.field = small_number(option, value);
    return true;
  }
  if (option == "--seeds") {
    a->run.seeds = number(option, value);
  } else if (option == "--first-seed") {
    a->run.first_seed = number(option, value);
  } else if (option == "--seed") {
    a->seed = number(option, value);
    a->one = true;
  } else if (option == "--jobs") {
    a->run.jobs = static_cast<int>(small_number(option, value));
  } else if (option == "--kept") {
    read_kept(value, &a->run.kept_seeds);
  } else if (option == "--without") {
    a->run.limits.without = faults(value);
  } else {
    return false;
  }
  return true;
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  a.run.jobs = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  a.run.progress = isatty(STDERR_FILENO);
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--trace") {
      a.trace = true;
    } else if (option == "--marks") {
      a.marks = true;
    } else if (option == "--require-marks") {
      a.require_marks = true;
    } else if (option == "--help" || option == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    } else if (take_value(option, i + 1 < argc ? argv[i + 1] : nullptr, &a)) {
      ++i;
    } else {
      usage_error("unknown option '" + option + "'");
    }
  }
  if (a.trace && !a.one) usage_error("--trace needs --seed");
  return a;
}

int run_one(const Arguments& a) {
  const Plan plan = draw_plan(a.seed, a.run.limits);
  std::printf("%s", describe(plan).c_str());
  Trace trace{.print = true};
  const Verdict verdict = simulate(plan, a.trace ? &trace : nullptr);
  if (a.marks) {
    for (int i = 0; i < kMarks; ++i) {
      const auto mark = static_cast<Mark>(i);
      std::printf("%-40s %10llu\n", name(mark), static_cast<unsigned long long>(verdict.marks.count(mark)));
    }
  }
  std::printf("seed %llu: %llu packets, %llu events, %.3f ms simulated, trace %016llx: %s\n",
              static_cast<unsigned long long>(a.seed), static_cast<unsigned long long>(verdict.packets),
              static_cast<unsigned long long>(verdict.events), static_cast<double>(verdict.time) / kMs,
              static_cast<unsigned long long>(verdict.hash),
              verdict.failure.empty() ? "no failure" : verdict.failure.c_str());
  return verdict.failure.empty() ? 0 : 1;
}

int run_many(const Arguments& a) {
  const auto begin = std::chrono::steady_clock::now();
  const RunTotals totals = run_seeds(a.run);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  int never = 0;
  for (size_t i = 0; i < kMarks; ++i) {
    never += totals.hits[i] == 0;
    if (a.marks || (a.require_marks && totals.hits[i] == 0)) {
      std::printf("%-40s %12llu in %llu seeds\n", name(static_cast<Mark>(i)),
                  static_cast<unsigned long long>(totals.hits[i]), static_cast<unsigned long long>(totals.seeds_hit[i]));
    }
  }
  constexpr size_t kExplained = 3;
  for (size_t i = 0; i < totals.failed.size(); ++i) {
    const uint64_t seed = totals.failed[i];
    std::printf("FAILED %s: %s\n", arguments(seed, a.run.limits).c_str(), failure_of(seed, a.run.limits, 1).c_str());
    if (i >= kExplained) continue;
    const Limits smaller = shrink(seed, a.run.limits);
    std::printf("smaller: gatun-sim %s --trace\n", arguments(seed, smaller).c_str());
    explain(seed, smaller);
  }
  if (a.require_marks && never > 0) std::printf("%d rare branches were never reached: the faults do not bite\n", never);
  std::printf("%.0f seeds/s, %llu packets, %llu events\n", static_cast<double>(totals.seeds) / took.count(),
              static_cast<unsigned long long>(totals.packets), static_cast<unsigned long long>(totals.events));
  std::printf("seeds: %llu failures: %zu (%.1f s)\n", static_cast<unsigned long long>(totals.seeds), totals.failed.size(),
              took.count());
  return totals.failed.empty() && !(a.require_marks && never > 0) ? 0 : 1;
}

}  // namespace
}  // namespace gatun::sim

int main(int argc, char** argv) {
  using namespace gatun::sim;
  // Each run frees all it took; giving that back to the system would cost more than the runs.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  const Arguments arguments = parse(argc, argv);
  return arguments.one ? run_one(arguments) : run_many(arguments);
}
