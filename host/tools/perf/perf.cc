#include "host/tools/perf/perf.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host/base/settings.h"
#include "host/tools/perf/launch_env.h"
#include "host/tools/perf/local.h"
#include "host/tools/perf/options.h"
#include "host/tools/perf/rank.h"

namespace gatun {
namespace {

using namespace perf;

int usage_error(const std::string& text) {
  std::fprintf(stderr, "gatun perf: %s\n", text.c_str());
  return 2;
}

// Found out before minutes of measuring, not after.
std::string json_file_error(const std::string& path) {
  if (path.empty()) return "";
  const bool existed = access(path.c_str(), F_OK) == 0;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return "--output_file " + path + " cannot be written: " + std::strerror(errno);
  std::fclose(file);
  if (!existed) std::remove(path.c_str());
  return "";
}

// A rank that our own parent started through mpirun.
int run_child_of_mpirun(const Options& options, const Launch& launch) {
  std::string error;
  const auto board = Board::open(options.run_dir + "/board", &error);
  if (board == nullptr) return usage_error(error);
  Place place;
  place.rank = launch.rank;
  place.nranks = launch.size;
  place.address = options.address;
  place.job = options.job;
  place.own_switch = options.own_switch;
  place.board = board.get();
  place.directory = options.run_dir;
  run_rank(options, place);
  return 0;  // the parent reads the outcome from the board; mpirun has nothing to add to it
}

int run_launched(const Options& options, const Launch& launch) {
  Place place;
  place.rank = launch.rank;
  place.nranks = launch.size;
  place.launcher = launch.launcher;
  place.address = options.address;
  place.job = options.job.empty() ? launch.job : options.job;
  return run_rank(options, place);
}

}  // namespace

int perf_main(const std::vector<std::string>& arguments) {
  Options options;
  if (const int code = parse_options(arguments, &options); code >= 0) return code;
  Launch launch;
  std::string error = detect_launch([](const char* name) { return std::getenv(name); }, &launch);
  if (error.empty() && !options.run_dir.empty()) return run_child_of_mpirun(options, launch);
  if (error.empty() && !launch.launcher.empty() && launch.size > 1 && options.local_ranks > 1) {
    error = "under " + launch.launcher + " each process is one rank: drop -g and -t, or unset " + launch.launcher +
            "'s variables to start local ranks";
  }
  if (!error.empty()) return usage_error(error);
  const bool launched = !launch.launcher.empty() && !options.local_ranks_given;
  if (!launched || launch.rank == 0) error = json_file_error(options.json_file);
  if (!error.empty()) return usage_error(error);
  return launched ? run_launched(options, launch) : run_local(options, arguments);
}

}  // namespace gatun
