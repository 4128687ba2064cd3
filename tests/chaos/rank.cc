#include "tests/chaos/rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "host/base/os.h"
#include "tests/system/lib_comm.h"
#include "tests/system/lib_values.h"

namespace gatun::chaos {
namespace {

template <size_t kSize>
void put(char (&at)[kSize], const std::string& text) {
  std::snprintf(at, kSize, "%s", text.c_str());
}

struct Flight {
  std::unique_ptr<Exercise> exercise;
  gatun_request_t request = nullptr;
  TimeNs began = 0;
  std::atomic<TimeNs> ended{0};
};

void note_end(void* context, int, const char*) {
  static_cast<Flight*>(context)->ended = now_ns();
}

// Time as a thread beside meets it: it stands still when the machine does.
class Ticker {
 public:
  Ticker() : thread_([this](const std::stop_token& stop) { count(stop); }) {}
  TimeNs passed() const { return ticks_ * kTick; }

 private:
  static constexpr TimeNs kTick = 10 * kMs;
  void count(const std::stop_token& stop) {
    for (; !stop.stop_requested(); ++ticks_) std::this_thread::sleep_for(std::chrono::nanoseconds(kTick));
  }
  std::atomic<int> ticks_{0};
  std::jthread thread_;
};

class Rank {
 public:
  Rank(const Plan& plan, int rank, Comm& comm, Board* board)
      : plan_(plan),
        rank_(rank),
        comm_(comm),
        board_(*board),
        own_(board->ranks[static_cast<size_t>(rank)]),
        random_(plan.seed) {}

  void run() {
    while (batch() && !over()) continue;
  }

 private:
  // False: an operation has failed, or was wrong.
  bool batch() {
    std::vector<Flight> flights(static_cast<size_t>(plan_.in_flight));
    bool good = true;
    for (Flight& flight : flights) good &= start(&flight);
    for (Flight& flight : flights) good &= finish(&flight);  // also behind an error: each request ends
    own_.digests[own_.batches % own_.digests.size()] = digest_;
    if (good) ++own_.batches;
    return good;
  }

  bool start(Flight* flight) {
    Case c = random_case(random_, plan_.ranks, plan_.count_max);
    if (random_() % 4 == 0) {
      c.collective = Collective::kAllReduce;
      c.type = Type::kF32;
      c.op = Op::kSum;
      c.rough = plan_.fallback == "exact" ? Rough::kExact : Rough::kClose;
    }
    if (own_.code != 0) return false;
    flight->exercise = std::make_unique<Exercise>(c, rank_, plan_.ranks);
    gatun_call_t call = GATUN_CALL_INIT;
    call.done = note_end;
    call.context = flight;
    flight->began = now_ns();
    return check(flight->exercise->start(comm_, &call, &flight->request));
  }

  bool finish(Flight* flight) {
    if (!flight->request) return true;
    const bool good = check(gatun_wait(&flight->request, -1));
    own_.longest = std::max(own_.longest, flight->ended - flight->began);
    if (!good) return false;
    const std::string wrong = flight->exercise->verify();
    if (!wrong.empty() && own_.wrong[0] == 0) put(own_.wrong, "batch " + std::to_string(own_.batches) + ", " + wrong);
    digest_ = (digest_ ^ flight->exercise->digest()) * 0x9e3779b97f4a7c15u;
    return wrong.empty();
  }

  bool check(int code) {
    if (code != 0 && own_.code == 0) {
      own_.code = code;
      put(own_.error, comm_.last_error());
    }
    return code == 0;
  }

  // Rank 0's word, for all.
  bool over() {
    if (rank_ == 0) board_.on_switch = comm_.stats().why[0] == 0;
    int32_t word = rank_ == 0 && board_.enough && (!plan_.returns || board_.on_switch) ? 1 : 0;
    return !check(gatun_broadcast(&word, &word, 1, GATUN_I32, 0, comm_)) || word == 1;
  }

  const Plan& plan_;
  const int rank_;
  Comm& comm_;
  Board& board_;
  RankBoard& own_;
  std::mt19937_64 random_;  // the same on all ranks
  uint64_t digest_ = 0;
};

}  // namespace

void live(const Plan& plan, int rank, const Addresses& addresses, Board* board) {
  RankBoard& own = board->ranks[static_cast<size_t>(rank)];
  RankOptions options{.address = addresses.gatund,
                      .job = "chaos",
                      .transport = plan.transport,
                      .trees = plan.trees,
                      .window = plan.window,
                      .payload_bytes = plan.payload_bytes,
                      .timeout_ms = plan.timeout_ms,
                      .join_timeout_ms = plan.join_timeout_ms,
                      .fallback = plan.fallback,
                      .rendezvous = addresses.rendezvous,
                      .detect_ms = plan.detect_ms};
  if (plan.lossy) options.wrap = lossy(plan.seed * kRanksMax + static_cast<uint64_t>(rank), 0.01, 0.01, 0.02, 0.005);
  Comm comm(plan.ranks, rank, options);
  own.create_code = comm.code();
  put(own.error, comm.error());
  own.joined = true;
  if (comm.code() != 0) {
    own.ended = true;
    return;
  }
  Rank(plan, rank, comm, board).run();
  const gatun_stats_t stats = comm.stats();
  own.operations = stats.operations;
  own.ring_operations = stats.ring_operations;
  own.failovers = stats.failovers;
  own.ended = true;
  const Ticker ticker;
  comm.reset();
  own.destroy = ticker.passed();
}

}  // namespace gatun::chaos
