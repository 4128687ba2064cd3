// chaos: runs jobs on real processes while their switch is killed, stopped, terminated and cut off and their ranks are
// killed, stopped and cut off from each other, by seed; several at a time. Checks every result. Exit code 1 if anything was
// wrong or hung.
//
// usage: chaos [--rounds N] [--seed S] [--parallel P] [--verbose]
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "host/base/os.h"
#include "tests/chaos/plan.h"
#include "tests/chaos/round.h"
#include "tests/chaos/summary.h"
#include "tests/system/cut.h"

using namespace gatun;
using namespace gatun::chaos;

namespace {

constexpr TimeNs kBound = 30 * kSecond;  // of a round: a multiple of all its delays, detection times and joins

struct Options {
  uint64_t rounds = 200, seed = 1, parallel = 6;
  bool verbose = false;
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "chaos: %s\nusage: chaos [--rounds N] [--seed S] [--parallel P] [--verbose]\n", text.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    uint64_t* number = flag == "--rounds"     ? &options.rounds
                       : flag == "--seed"     ? &options.seed
                       : flag == "--parallel" ? &options.parallel
                                              : nullptr;
    if (flag == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (!number) die("unknown flag '" + flag + "'");
    char* end = nullptr;
    if (++i == argc || (*number = std::strtoull(argv[i], &end, 10), *end != 0) || (*number == 0 && flag != "--seed"))
      die(flag + " needs a number above 0");
  }
  return options;
}

// One of the rounds that run at the same time.
struct Slot {
  Board* board = nullptr;
  Plan plan;
  pid_t pid = 0;
  TimeNs began = 0;
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options), slots_(options.parallel), cannot_cut_(cut_forbidden()) {
    for (Slot& slot : slots_) {
      void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) die("no memory");
      slot.board = static_cast<Board*>(memory);
    }
  }

  bool run() {
    const TimeNs began = now_ns();
    uint64_t next = 0;
    while (summary_.rounds() < options_.rounds) {
      for (Slot& slot : slots_) {
        if (slot.pid == 0 && next < options_.rounds) begin(&slot, options_.seed + next++);
        if (slot.pid != 0) look_at(&slot);
      }
      if (summary_.rounds() >= said_ + 50) {
        said_ = summary_.rounds();
        std::printf("%u of %llu rounds, %.0f s\n", said_, static_cast<unsigned long long>(options_.rounds),
                    static_cast<double>(now_ns() - began) / 1e9);
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    summary_.print(cannot_cut_, skipped_);
    return summary_.right();
  }

 private:
  void begin(Slot* slot, uint64_t seed) {
    bool skipped = false;
    slot->plan = make_plan(seed, cannot_cut_.empty(), &skipped);
    skipped_ += skipped;
    slot->board = new (slot->board) Board{.verdict = "the round did not come to its end"};
    slot->began = now_ns();
    const auto number = static_cast<unsigned>(slot - slots_.data());
    const pid_t parent = ::getpid();
    const auto own = static_cast<unsigned>(parent);
    const std::string ip = "127." + std::to_string(64 + number % 128) + "." + std::to_string(own >> 8 & 255) + "." +
                           std::to_string(1 + own % 254);
    std::fflush(stdout);
    slot->pid = ::fork();
    if (slot->pid < 0) die("cannot fork");
    if (slot->pid == 0) be_round(parent, slot->plan, ip, slot->board);
  }

  void look_at(Slot* slot) {
    int status = 0;
    if (::waitpid(slot->pid, &status, WNOHANG) == slot->pid) {
      std::string verdict = slot->board->verdict;
      if (status != 0) verdict += "the round's process ended with status " + std::to_string(status);
      end(slot, verdict.empty() ? Summary::End::kRight : Summary::End::kWrong, verdict);
    } else if (now_ns() - slot->began > kBound) {
      std::printf("HANG %s\n", text(slot->plan).c_str());
      print_stacks(*slot->board);
      ::kill(slot->pid, SIGTERM);
      ::waitpid(slot->pid, nullptr, 0);
      end(slot, Summary::End::kHang, "");
    }
  }

  void end(Slot* slot, Summary::End how, const std::string& verdict) {
    summary_.add(slot->plan, *slot->board, how);
    if (how == Summary::End::kWrong) std::printf("WRONG %s\n      %s\n", text(slot->plan).c_str(), verdict.c_str());
    if (options_.verbose && how == Summary::End::kRight) {
      std::printf("right, %.2f s: %s\n", static_cast<double>(now_ns() - slot->began) / 1e9, text(slot->plan).c_str());
    }
    std::fflush(stdout);
    slot->pid = 0;
  }

  static void print_stacks(const Board& board) {
    for (size_t rank = 0; rank < board.ranks.size(); ++rank) {
      const RankBoard& own = board.ranks[rank];
      if (own.pid == 0) continue;
      std::printf("rank %zu, pid %d: batches %u%s%s\n", rank, own.pid.load(), own.batches.load(),
                  own.joined ? "" : ", has not joined", own.ended ? ", leaves" : "");
      print_stack(own.pid);
    }
    if (board.gatund != 0) print_stack(board.gatund);
  }

  static void print_stack(pid_t pid) {
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string number = std::to_string(pid);
      ::execlp("gdb", "gdb", "-batch", "-p", number.c_str(), "-ex", "thread apply all bt", nullptr);
      std::printf("no gdb here to show the stacks of process %d\n", pid);
      std::fflush(stdout);
      ::_exit(0);
    }
    if (child > 0) ::waitpid(child, nullptr, 0);
  }

  const Options options_;
  std::vector<Slot> slots_;
  const std::string cannot_cut_;
  uint32_t skipped_ = 0, said_ = 0;
  Summary summary_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ::setenv("GATUN_LOG", options.verbose ? "info" : "error", 1);
  return Runner(options).run() ? 0 : 1;
}
