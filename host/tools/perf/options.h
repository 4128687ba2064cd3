// The flags of `gatun perf`: nccl-tests' own, letter for letter, and Gatun's.
//
// Parsing is separate from running, so that a bad flag is named before any process or socket exists. Flags of nccl-tests
// that only mean something to a GPU are known by name: their default is accepted, anything else is refused with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gatun/gatun.h"

namespace gatun::perf {

enum class Collective { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kBarrier };
const char* name(Collective collective);
bool has_root(Collective collective);
bool has_op(Collective collective);

enum class Average { kRank0 = 0, kMean = 1, kLeast = 2, kMost = 3 };

struct Options {
  int local_ranks = 1;  // -t times -g
  bool local_ranks_given = false;
  uint64_t bytes_min = 32u << 20, bytes_max = 32u << 20, step_bytes = 1u << 20;
  int step_factor = 1;  // <= 1: step_bytes
  int iters = 20;
  bool iters_given = false;
  int warmup_iters = 5;
  int aggregate = 1;  // operations in flight together
  int cycles = 1;     // 0: for ever
  int check_iters = 1;
  bool blocking = false;
  bool registered = false;  // the buffers are
  bool report_cpu = false, report_timestamps = false;
  Average average = Average::kMean;
  bool average_given = false;
  int unalign = 0;    // elements
  int timeout_s = 0;  // of one operation; 0: the library's
  std::vector<gatun_type_t> types = {GATUN_F32};
  std::vector<gatun_op_t> ops = {GATUN_SUM};
  int root = 0;  // -1: every rank in turn
  std::string json_file;

  Collective collective = Collective::kAllReduce;
  std::vector<std::string> peers;  // --vs, in order: "gloo", "mpi", "mpi-tcp", "mpi-shm"
  bool quick = false;
  int repetitions = 0;  // of a comparison; 0: chosen
  uint64_t seed = 1;
  std::string address, job;      // "" unless named by flag, environment or file
  std::string fallback = "off";  // what is measured is the switch, unless one names something else
  std::string run_dir;           // hidden: this process is a rank that a parent started through mpirun
  bool skip_collective = false;  // hidden: proves that the check finds results that were never written
  bool own_switch = false;       // hidden: that parent started the switch
};

// Returns -1 to go on, else the exit code after --help (0) or a named error on stderr (2). Settings given as flags are put
// into this process's environment, so that ranks and a switch of our own take them from there.
int parse_options(const std::vector<std::string>& arguments, Options* options);

// Every size of the run, in order.
std::vector<uint64_t> sizes(const Options& options);

// "64M" and the like, as nccl-tests reads sizes: K, M, G are powers of 1024. False if text is no size.
bool parse_size(const std::string& text, uint64_t* bytes);
std::string format_size(uint64_t bytes);  // "64K"; exact

}  // namespace gatun::perf
