#include "host/tools/perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "host/base/settings.h"
#include "host/tools/perf/numbers.h"
#include "host/tools/settings_flags.h"

namespace gatun::perf {
namespace {

constexpr const char* kCollectives[] = {"allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "barrier"};
constexpr const char* kPeers[] = {"gloo", "mpi", "mpi-tcp", "mpi-shm"};

// What CLI11 cannot hold directly.
struct Texts {
  std::string bytes_min = "32M", bytes_max = "32M", step_bytes = "1M";
  std::string op = "sum", type = "float", root = "0", collective = "allreduce";
  int threads = 1, ranks = 1, average = 1, blocking = 0, parallel_init = 0, registered = 0;
  std::vector<std::string> peers;
  int gpu_only[4] = {};  // of kGpuOnly
};

// Flags of nccl-tests that only a GPU can serve.
constexpr const char* kGpuOnly[4] = {"-y,--stream_null", "-G,--cudagraph", "-D,--device_implementation", "-M,--memory"};

void add_nccl_flags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("-t,--nthreads", texts.threads, "Multiplies -g (a rank is a process here)")->check(CLI::Range(1, 64));
  app.add_option("-g,--ngpus", texts.ranks, "Local ranks to start, with a gatund of their own")->check(CLI::Range(1, 64));
  app.add_option("-b,--minbytes", texts.bytes_min, "Least size; K, M, G are powers of 1024")->capture_default_str();
  app.add_option("-e,--maxbytes", texts.bytes_max, "Greatest size")->capture_default_str();
  app.add_option("-i,--stepbytes", texts.step_bytes, "Step between sizes")->capture_default_str();
  app.add_option("-f,--stepfactor", options.step_factor, "Factor between sizes, instead of a step");
  app.add_option("-n,--iters", options.iters, "Timed iterations")->check(CLI::Range(1, 100'000'000))->capture_default_str();
  app.add_option("-m,--agg_iters", options.aggregate, "Operations in flight together in an iteration")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmup_iters, "Iterations before timing starts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-N,--run_cycles", options.cycles, "Times to run and print it all (0: for ever)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-c,--check", options.check_iters, "Checked iterations per size; every element of every rank is compared")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-o,--op", texts.op, op_names())->capture_default_str();
  app.add_option("-d,--datatype", texts.type, type_names())->capture_default_str();
  app.add_option("-r,--root", texts.root, "Root of broadcast and reduce, or all")->capture_default_str();
  app.add_option("-z,--blocking", texts.blocking, "1: a barrier after each iteration as well")->check(CLI::Range(0, 1));
  app.add_option("-T,--timeout", options.timeout_s, "Deadline of one operation in seconds")->check(CLI::NonNegativeNumber);
  app.add_option("-C,--report_cputime", options.report_cpu, "1: CPU time of a rank instead of wall time");
  app.add_option("-S,--report_timestamps", options.report_timestamps, "1: a time stamp on each row");
  app.add_option("-J,--output_file", options.json_file, "Write everything as JSON to this file");
  app.add_option("-a,--average", texts.average, "Time over ranks: 0 rank 0, 1 mean, 2 least, 3 most")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  app.add_option("-u,--unalign", options.unalign, "Index of the first element in its buffer")->check(CLI::Range(0, 4096));
  app.add_option("-p,--parallel_init", texts.parallel_init, "No effect: ranks always start in parallel");
  app.add_option("-R,--local_register", texts.registered, "1: the buffers are registered (gatun_register)")
      ->check(CLI::Range(0, 1));
  for (int i = 0; i < 4; ++i) app.add_option(kGpuOnly[i], texts.gpu_only[i])->group("");
}

void add_own_flags(CLI::App& app, Options& options, Texts& texts) {
  app.add_option("--collective", texts.collective, "allreduce, reduce_scatter, allgather, broadcast, reduce or barrier")
      ->capture_default_str()
      ->group("Gatun");
  app.add_option("--vs", texts.peers, "Run these beside it, in turns: gloo, mpi, mpi-tcp, mpi-shm")
      ->delimiter(',')
      ->group("Gatun");
  app.add_option("--reps", options.repetitions, "Repetitions of a comparison")->check(CLI::Range(1, 1000))->group("Gatun");
  app.add_flag("--quick", options.quick, "Fewer iterations and repetitions: a rougher table, sooner")->group("Gatun");
  app.add_option("--seed", options.seed, "Seed of the inputs")->capture_default_str()->group("Gatun");
  app.add_option("--run-dir", options.run_dir)->group("");
  app.add_flag("--skip-collective", options.skip_collective)->group("");
  app.add_flag("--own-switch", options.own_switch)->group("");
}

// nccl-tests gives --timeout in seconds; the setting of that name takes a time with its unit.
std::vector<std::string> with_units(std::vector<std::string> arguments) {
  constexpr std::string_view kFlag = "--timeout";
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view text = arguments[i];
    if (text.substr(0, kFlag.size() + 1) == "--timeout=" && is_number(text.substr(kFlag.size() + 1))) arguments[i] += "s";
    if (text == kFlag && i + 1 < arguments.size() && is_number(arguments[i + 1])) arguments[i + 1] += "s";
  }
  return arguments;
}

// Takes the settings' flags out of arguments and reads the other sources.
std::string take_settings(std::vector<std::string>* arguments, Options* options) {
  Settings settings;
  if (const Status status = take_setting_flags(arguments, &settings); !status.ok()) return status.message();
  if (settings.origin("address").source != Settings::Source::kDefault) options->address = settings.values().address;
  if (settings.origin("fallback").source != Settings::Source::kDefault) options->fallback = settings.values().fallback;
  if (settings.origin("job").source != Settings::Source::kDefault) options->job = settings.values().job;
  return "";
}

std::string wrong_value(const char* flag, const std::string& value, const std::string& expected) {
  return std::string(flag) + " " + value + ": expected " + expected;
}

std::string take_sizes(const Texts& texts, Options& options) {
  constexpr const char* kSize = "a size such as 1024, 64K, 32M or 1G";
  if (!parse_size(texts.bytes_min, &options.bytes_min)) return wrong_value("--minbytes", texts.bytes_min, kSize);
  if (!parse_size(texts.bytes_max, &options.bytes_max)) return wrong_value("--maxbytes", texts.bytes_max, kSize);
  if (!parse_size(texts.step_bytes, &options.step_bytes)) return wrong_value("--stepbytes", texts.step_bytes, kSize);
  if (options.bytes_min > options.bytes_max) {
    return "--minbytes " + texts.bytes_min + " is greater than --maxbytes " + texts.bytes_max;
  }
  if (options.step_factor <= 1 && options.step_bytes == 0) return "--stepbytes 0 would never reach --maxbytes";
  return "";
}

std::string take_kinds(const Texts& texts, Options& options) {
  int index = 0;
  while (index < 6 && texts.collective != kCollectives[index]) ++index;
  if (index == 6) {
    return wrong_value("--collective", texts.collective,
                       "allreduce, reduce_scatter, allgather, broadcast, reduce or barrier");
  }
  options.collective = static_cast<Collective>(index);

  options.types.assign(1, GATUN_F32);
  if (texts.type == "all") {
    options.types.clear();
    for (int i = 0; i < kAllTypes; ++i) options.types.push_back(static_cast<gatun_type_t>(i));
  } else if (!parse_type(texts.type, &options.types[0])) {
    return wrong_value("--datatype", texts.type, type_names());
  }
  options.ops.assign(1, GATUN_SUM);
  if (texts.op == "all") {
    options.ops.clear();
    for (int i = 0; i < kAllOps; ++i) options.ops.push_back(static_cast<gatun_op_t>(i));
  } else if (!parse_op(texts.op, &options.ops[0])) {
    return wrong_value("--op", texts.op, op_names());
  }
  if (!has_op(options.collective)) options.ops.assign(1, GATUN_SUM);

  char* end = nullptr;
  options.root = texts.root == "all" ? -1 : static_cast<int>(std::strtol(texts.root.c_str(), &end, 10));
  if (texts.root != "all" && (texts.root.empty() || *end != '\0' || options.root < 0)) {
    return wrong_value("--root", texts.root, "a rank or all");
  }
  return "";
}

std::string take_peers(const Texts& texts, Options& options) {
  int mpi_kinds = 0;
  for (const std::string& peer : texts.peers) {
    if (std::find(std::begin(kPeers), std::end(kPeers), peer) == std::end(kPeers)) {
      return wrong_value("--vs", peer, "gloo, mpi, mpi-tcp or mpi-shm, several separated by commas");
    }
    if (std::find(options.peers.begin(), options.peers.end(), peer) != options.peers.end()) continue;
    mpi_kinds += peer.rfind("mpi", 0) == 0;
    options.peers.push_back(peer);
  }
  if (mpi_kinds > 1) return "--vs takes one of mpi, mpi-tcp and mpi-shm: Open MPI's transport is chosen once per run";
  if (!options.peers.empty() && options.collective != Collective::kAllReduce) {
    return std::string("--vs compares all-reduce only, not --collective ") + name(options.collective);
  }
  if (!options.peers.empty() && options.aggregate > 1) return "--vs runs one operation at a time: drop --agg_iters";
  return "";
}

}  // namespace

const char* name(Collective collective) {
  return kCollectives[static_cast<int>(collective)];
}

bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

bool has_op(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

int parse_options(const std::vector<std::string>& arguments, Options* options) {
  CLI::App app("Collective benchmark and check, with the flags and columns of nccl-tests", "gatun perf");
  app.footer(
      "Settings, as flags, GATUN_<KEY> or in the file:\n" + Settings::help() +
      "\nWith -g it starts a switch of its own, unless an address is set. Started by torchrun, mpirun or srun it joins as\n"
      "that rank, on the switch at that address. Without a switch it fails; with fallback set it measures the way without.");
  Texts texts;
  add_nccl_flags(app, *options, texts);
  add_own_flags(app, *options, texts);
  std::vector<std::string> rest = with_units(arguments);
  std::string error = take_settings(&rest, options);
  const auto is_help = [](const std::string& argument) { return argument == "--help" || argument == "-h"; };
  if (std::any_of(rest.begin(), rest.end(), is_help)) {  // whatever else is wrong
    std::fputs(app.help().c_str(), stdout);
    return 0;
  }
  if (!error.empty()) {
    std::fprintf(stderr, "gatun perf: %s\n", error.c_str());
    return 2;
  }
  try {
    std::reverse(rest.begin(), rest.end());  // as CLI11 wants them
    app.parse(rest);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gatun perf: %s (gatun perf --help lists the flags)\n", error.what());
    return 2;
  }
  options->local_ranks = texts.threads * texts.ranks;
  options->local_ranks_given = app.count("--ngpus") + app.count("--nthreads") > 0;
  options->iters_given = app.count("--iters") > 0;
  options->average = static_cast<Average>(texts.average);
  options->average_given = app.count("--average") > 0;
  options->blocking = texts.blocking != 0;
  options->registered = texts.registered != 0;

  error = take_sizes(texts, *options);
  if (error.empty()) error = take_kinds(texts, *options);
  if (error.empty()) error = take_peers(texts, *options);
  if (error.empty() && options->local_ranks > 64) error = "-t times -g is more than 64 local ranks";
  for (int i = 0; i < 4 && error.empty(); ++i) {
    if (texts.gpu_only[i] != 0) error = std::string(kGpuOnly[i]) + " needs a GPU: only 0 is possible here";
  }
  if (error.empty()) return -1;
  std::fprintf(stderr, "gatun perf: %s\n", error.c_str());
  return 2;
}

std::vector<uint64_t> sizes(const Options& options) {
  if (options.collective == Collective::kBarrier) return {0};
  std::vector<uint64_t> result;
  for (uint64_t bytes = options.bytes_min; bytes <= options.bytes_max;) {
    result.push_back(bytes);
    const uint64_t factor = static_cast<uint64_t>(std::max(options.step_factor, 1));
    const uint64_t next = factor > 1 ? std::max<uint64_t>(bytes * factor, 1) : bytes + options.step_bytes;
    if (next <= bytes) break;
    bytes = next;
  }
  return result;
}

bool parse_size(const std::string& text, uint64_t* bytes) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(number >= 0)) return false;
  double unit = 1;
  switch (*end) {
    case '\0': break;
    case 'k':
    case 'K':
      unit = 1024.0;
      ++end;
      break;
    case 'm':
    case 'M':
      unit = 1024.0 * 1024;
      ++end;
      break;
    case 'g':
    case 'G':
      unit = 1024.0 * 1024 * 1024;
      ++end;
      break;
    default: return false;
  }
  if (*end != '\0' || number * unit > 1e15) return false;
  *bytes = static_cast<uint64_t>(number * unit);
  return true;
}

std::string format_size(uint64_t bytes) {
  int unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + std::string(unit == 0 ? "" : std::string(1, " KMG"[unit]));
}

}  // namespace gatun::perf
