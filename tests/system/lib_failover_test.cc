// Without a switch: jobs that never had one, switches that die in mid-operation, and the way back.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/system/gatund_process.h"
#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;
using std::chrono::milliseconds;

namespace {

// Rounds of operations in flight, until `until` says so to every rank alike: rank 0's word, broadcast.
std::string rounds_until(Comm& comm, int rank, int ranks, uint64_t count, const std::function<bool()>& until,
                         const std::function<void()>& each_round = nullptr) {
  for (uint64_t round = 0;; ++round) {
    constexpr int kInFlight = 5;
    std::vector<std::unique_ptr<Exercise>> exercises;
    std::vector<gatun_request_t> requests(kInFlight, nullptr);
    for (uint64_t i = 0; i < kInFlight; ++i) {
      const Collective odd = i == 3 ? Collective::kReduceScatter : Collective::kBroadcast;
      const Case c{.collective = i >= 3 ? odd : Collective::kAllReduce,
                   .count = i == 1 ? 7 : count / (i + 1),
                   .in_place = i % 2 == 0,
                   .salt = round * 31 + i};
      exercises.push_back(std::make_unique<Exercise>(c, rank, ranks));
      if (const int code = exercises.back()->start(comm, nullptr, &requests[i])) return expect_code(0, code, comm, "start");
    }
    for (int i = 0; i < kInFlight; ++i) {
      const auto at = static_cast<size_t>(i);
      if (const int code = gatun_wait(&requests[at], -1)) return expect_code(0, code, comm, "wait");
      if (std::string wrong = exercises[at]->verify(); !wrong.empty()) {
        return "round " + std::to_string(round) + ", operation " + std::to_string(i) + ": " + wrong;
      }
    }
    if (rank == 0 && each_round) each_round();
    int32_t over = rank == 0 && until() ? 1 : 0;
    if (const int code = gatun_broadcast(&over, &over, 1, GATUN_I32, 0, comm)) return expect_code(0, code, comm, "word");
    if (over) return "";
  }
}

bool on_switch(const Comm& comm) {
  return comm.stats().why[0] == 0;
}

}  // namespace

TEST_CASE("failover__no_daemon_anywhere", "[lib][system]") {
  const std::string fallback = GENERATE("ring", "exact");
  const RankOptions options{.address = "127.0.0.1:" + std::to_string(free_port()),
                            .fallback = fallback,
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  run_ranks(4, options, [&](int rank, Comm& comm) {
    int round = 0;
    std::string wrong = rounds_until(comm, rank, 4, 50'000, [&] { return ++round == 10; });
    if (!wrong.empty()) return wrong;
    const gatun_stats_t stats = comm.stats();
    if (on_switch(comm) || stats.ring_operations != stats.operations || stats.operations != 60 || stats.ring_bytes == 0)
      return std::string("the counters are wrong");
    return std::string(stats.why).find("no gatund at") == std::string::npos ? "why: " + std::string(stats.why) : "";
  });
}

// Those who wait at the daemon for a rank that is not there yet, and the rank that comes when the daemon is dead, meet
// without it.
TEST_CASE("failover__daemon_dies_while_ranks_join", "[lib][system]") {
  const std::string fallback = GENERATE("ring", "exact");
  GatundProcess gatund;
  const RankOptions options{
      .address = gatund.address(), .fallback = fallback, .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  constexpr int kRanks = 3;
  std::vector<std::string> wrong(kRanks, "did not end");
  auto live = [&](int rank) {
    Comm comm(kRanks, rank, options);
    Exercise exercise({.count = 5000}, rank, kRanks);
    const int code = comm.code() != 0 ? comm.code() : exercise.run(comm);
    if (code != 0) wrong[static_cast<size_t>(rank)] = comm.code() != 0 ? comm.error() : comm.last_error();
    if (code == 0) wrong[static_cast<size_t>(rank)] = exercise.verify();
  };
  {
    std::jthread first(live, 0), second(live, 1);
    std::this_thread::sleep_for(milliseconds(300));  // they have joined; if not, they find no daemon
    gatund.end();
    std::jthread last(live, 2);
  }
  for (const std::string& each : wrong) CHECK(each == "");
}

namespace {

// One rank's whole life: joins, sums once. "" or what went wrong.
std::string one_sum(int ranks, int rank, const RankOptions& options) {
  Comm comm(ranks, rank, options);
  if (comm.code() != 0) return comm.error();
  Exercise exercise({.count = 5000}, rank, ranks);
  if (exercise.run(comm) != 0) return comm.last_error();
  return exercise.verify();
}

}  // namespace

// A daemon that takes connections and says nothing is as good as none.
TEST_CASE("failover__daemon_is_stopped_when_ranks_join", "[lib][system]") {
  GatundProcess gatund;
  const RankOptions options{
      .address = gatund.address(), .fallback = "ring", .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  constexpr int kRanks = 3;
  gatund.signal(SIGSTOP);
  std::vector<std::string> wrong(kRanks, "did not end");
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] { wrong[static_cast<size_t>(rank)] = one_sum(kRanks, rank, options); });
    }
  }
  gatund.signal(SIGCONT);
  for (const std::string& each : wrong) CHECK(each == "");
}

// Those who had joined wait at the rendezvous when the daemon is back, and the rank that comes then waits at the daemon.
TEST_CASE("failover__daemon_is_back_before_the_last_rank_comes", "[lib][system]") {
  GatundProcess gatund;
  const RankOptions options{
      .address = gatund.address(), .fallback = "ring", .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  constexpr int kRanks = 3;
  const int late = GENERATE(0, 2);  // rank 0 serves the rendezvous
  std::vector<std::string> wrong(kRanks, "did not end");
  auto live = [&](int rank) { wrong[static_cast<size_t>(rank)] = one_sum(kRanks, rank, options); };
  {
    std::jthread first(live, (late + 1) % kRanks), second(live, (late + 2) % kRanks);
    std::this_thread::sleep_for(milliseconds(300));
    gatund.end();
    std::this_thread::sleep_for(milliseconds(2500));
    gatund.start();
    std::jthread last(live, late);
  }
  for (const std::string& each : wrong) CHECK(each == "");
}

// Another process takes the place of a rank that is killed before all have come, at the daemon and at the rendezvous.
TEST_CASE("failover__a_rank_killed_while_joining_is_replaced", "[lib][system]") {
  const bool daemon = GENERATE(true, false);
  GatundProcess gatund;
  if (!daemon) gatund.end();
  const RankOptions options{
      .address = gatund.address(), .fallback = "ring", .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  constexpr int kRanks = 3;
  std::vector<std::string> wrong(kRanks, "did not end");
  auto live = [&](int rank) { wrong[static_cast<size_t>(rank)] = one_sum(kRanks, rank, options); };
  const pid_t doomed = ::fork();
  REQUIRE(doomed >= 0);
  if (doomed == 0) {
    const Comm comm(kRanks, 2, options);
    ::_exit(0);
  }
  {
    std::jthread first(live, 0);
    std::this_thread::sleep_for(milliseconds(2500));  // it may be at both places by then
    CHECK(::kill(doomed, SIGKILL) == 0);
    int status = 0;
    CHECK(::waitpid(doomed, &status, 0) == doomed);
    CHECK(WIFSIGNALED(status));
    std::jthread second(live, 1), replacement(live, 2);
  }
  for (const std::string& each : wrong) CHECK(each == "");
}

// All operations of a job without a switch, and the same contract for them as on a switch.
TEST_CASE("failover__every_collective_type_and_operator_on_the_ring", "[lib][system]") {
  const std::string fallback = GENERATE("ring", "exact");
  const RankOptions options{.address = "127.0.0.1:" + std::to_string(free_port()),
                            .fallback = fallback,
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    for (int collective = 0; collective < kCollectives; ++collective) {
      for (int type = 0; type < kTypes; ++type) {
        for (int op = 0; op < kOps; ++op) {
          const Case c{.collective = static_cast<Collective>(collective),
                       .type = static_cast<Type>(type),
                       .op = static_cast<Op>(op),
                       .count = static_cast<uint64_t>(type * 37 % 11 + (op == 2 ? 0 : 100)),
                       .root = type % 3,
                       .in_place = op % 2 == 0};
          Exercise exercise(c, rank, 3);
          if (const int code = exercise.run(comm)) return expect_code(0, code, comm, text(c));
          if (std::string wrong = exercise.verify(); !wrong.empty()) return wrong;
        }
      }
    }
    return std::string();
  });
}

TEST_CASE("failover__mismatches_on_the_ring_are_named_and_survived", "[lib][system]") {
  const RankOptions options{.address = "127.0.0.1:" + std::to_string(free_port()),
                            .fallback = "ring",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    for (int round = 0; round < 5; ++round) {
      Exercise odd({.count = rank == 1 ? 409'598u : 409'600u}, rank, 3);
      const int code = odd.run(comm);
      if (code != GATUN_MISMATCH) return expect_code(GATUN_MISMATCH, code, comm, "odd");
      const std::string text = comm.last_error();
      if (text.find("409598") == std::string::npos || text.find("409600") == std::string::npos) return text;
      if (std::string wrong = odd.untouched(); !wrong.empty()) return wrong;
      Exercise nothing({.count = 0}, rank, 3), after({.count = 1000}, rank, 3);
      if (const int later = nothing.run(comm)) return expect_code(0, later, comm, "nothing");
      if (const int later = after.run(comm)) return expect_code(0, later, comm, "after");
      if (std::string wrong = after.verify(); !wrong.empty()) return wrong;
    }
    return std::string();
  });
}

// The daemon is killed in mid-operation, and started again, over and over.
TEST_CASE("failover__killed_and_started_again", "[lib][system]") {
  const std::string transport = GENERATE("shm", "udp");
  const std::string fallback = GENERATE("ring", "exact");
  CAPTURE(transport, fallback);
  GatundProcess gatund;
  constexpr int kRanks = 3, kTimes = 3;
  // A killed daemon's connections end at once: silence need not be waited for, and a loaded machine must not look like it.
  const RankOptions options{
      .address = gatund.address(), .transport = transport, .trees = 2, .fallback = fallback, .detect_ms = 10'000};
  int killed = 0, round = 0;
  std::jthread killer;
  run_ranks(kRanks, options, [&](int rank, Comm& comm) {
    std::string wrong = rounds_until(
        comm, rank, kRanks, 100'000, [&] { return comm.stats().failovers == kTimes && on_switch(comm); },
        [&] {
          ++round;
          if (killer.joinable()) killer.join();
          if (gatund.pid() >= 0 && on_switch(comm) && round % 7 == 3 && killed < kTimes) {
            killer = std::jthread([&gatund, wait = milliseconds(round % 5)] {  // while the next round is in flight
              std::this_thread::sleep_for(wait);
              gatund.end();
            });
            ++killed;
          } else if (gatund.pid() < 0 && round % 7 == 0) {
            gatund.start();
          }
        });
    if (!wrong.empty()) return wrong;
    const gatun_stats_t stats = comm.stats();
    return stats.failovers == kTimes && stats.ring_operations > 0 ? "" : "failovers: " + std::to_string(stats.failovers);
  });
}

// A daemon that hangs keeps its connections: only its silence tells.
TEST_CASE("failover__stopped_and_continued", "[lib][system]") {
  const std::string transport = GENERATE("shm", "udp");
  CAPTURE(transport);
  GatundProcess gatund;
  const RankOptions options{.address = gatund.address(), .transport = transport, .fallback = "exact", .detect_ms = 1000};
  int round = 0;
  std::atomic<uint64_t> failovers{0};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    std::string wrong = rounds_until(
        comm, rank, 3, 200'000, [&] { return round > 40 && on_switch(comm); },
        [&] {
          ++round;
          if (round == 5) gatund.signal(SIGSTOP);
          if (round == 20) gatund.signal(SIGCONT);
        });
    failovers = comm.stats().failovers;
    return wrong;
  });
  CHECK(failovers >= 1);
}

// A rank that dies on the ring is named; nobody hangs.
TEST_CASE("failover__a_rank_that_leaves_or_is_late_on_the_ring", "[lib][system]") {
  const RankOptions options{.address = "127.0.0.1:" + std::to_string(free_port()),
                            .timeout_ms = 700,
                            .fallback = "ring",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  std::atomic<int> ended{0};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    Exercise first({.count = 100}, rank, 3);
    if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
    if (rank == 2) {
      while (ended < 2) std::this_thread::sleep_for(milliseconds(5));
      return std::string();
    }
    Exercise second({.count = 100'000}, rank, 3);
    const int code = second.run(comm);
    ++ended;
    const std::string text = comm.last_error();
    if (code != GATUN_TIMEOUT || text.find("rank 2 (") == std::string::npos) return std::to_string(code) + ": " + text;
    return second.untouched();
  });
}

// Whatever the others do: an abort releases every waiter at once, on the ring and on the switch, and destroying is bounded.
TEST_CASE("failover__abort_and_destroy_are_bounded", "[lib][system]") {
  const bool with_switch = GENERATE(true, false);
  CAPTURE(with_switch);
  std::unique_ptr<GatundProcess> gatund;
  if (with_switch) gatund = std::make_unique<GatundProcess>();
  const RankOptions options{.address = with_switch ? gatund->address() : "127.0.0.1:" + std::to_string(free_port()),
                            .timeout_ms = 60'000,
                            .fallback = "ring",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  std::atomic<bool> waits{false}, over{false};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    Exercise first({.count = 100}, rank, 3);
    if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
    if (rank == 2) {  // takes no part, and neither leaves nor answers
      while (!over) std::this_thread::sleep_for(milliseconds(5));
      return std::string();
    }
    std::string wrong;
    std::thread caller([&] {
      Exercise second({.count = 100'000}, rank, 3);
      waits = true;
      const int code = second.run(comm);
      if (code != GATUN_ABORTED) wrong = expect_code(GATUN_ABORTED, code, comm, "second");
    });
    if (rank == 0) {
      while (!waits) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(50));
      gatun_comm_abort(comm);
    }
    caller.join();
    comm.reset();
    over = true;
    return wrong;
  });
}

// SIGSTOP in the middle of a ring: most ranks wait for one that waits itself, and yet all name the one that hangs.
TEST_CASE("failover__a_stopped_rank_is_named_on_the_ring", "[lib][system]") {
  const std::string fallback = GENERATE("ring", "exact");
  CAPTURE(fallback);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& failed = *new (memory) std::atomic<int>(0);
  auto& stopped = *new (static_cast<char*>(memory) + 64) std::atomic<pid_t>(0);
  const RankOptions options{.address = "127.0.0.1:" + std::to_string(free_port()),
                            .timeout_ms = 1000,
                            .fallback = fallback,
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  run_rank_processes(4, {}, [&](int rank, Comm& with_switch) -> std::string {
    with_switch.reset();
    const Comm comm(4, rank, options);
    if (comm.code() != 0) return comm.error();
    int code = gatun_barrier(comm);
    while (code == 0) {  // should the first end before rank 2 stops, the next waits for it
      Exercise exercise({.count = 1'000'000}, rank, 4);
      gatun_request_t request = nullptr;
      if (code = exercise.start(comm, nullptr, &request); code != 0) break;
      if (rank == 2 && stopped == 0) {
        stopped = ::getpid();
        ::kill(::getpid(), SIGSTOP);
      }
      code = gatun_wait(&request, -1);
    }
    const std::string text = comm.last_error();
    if (rank != 2 && ++failed == 3 && stopped != 0) ::kill(stopped, SIGCONT);
    const bool named = code == GATUN_TIMEOUT && text.find("rank 2 (") != std::string::npos;
    return named || rank == 2 ? "" : std::to_string(code) + ": " + text;
  });
  ::munmap(memory, 4096);
}

// What another rank never joins is not waited for until its own timeout.
TEST_CASE("failover__destroying_ends_what_is_pending", "[lib][system]") {
  const bool with_switch = GENERATE(true, false);
  CAPTURE(with_switch);
  std::unique_ptr<GatundProcess> gatund;
  if (with_switch) gatund = std::make_unique<GatundProcess>();
  const RankOptions options{.address = with_switch ? gatund->address() : "127.0.0.1:" + std::to_string(free_port()),
                            .timeout_ms = 100'000,
                            .fallback = "ring",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  std::atomic<int> over{0};
  run_ranks(3, options, [&](int rank, Comm& comm) {
    Exercise first({.count = 100}, rank, 3);
    if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
    if (rank == 2) {  // takes no part
      while (over < 2) std::this_thread::sleep_for(milliseconds(5));
      return std::string();
    }
    int ended = 0;
    gatun_call_t call = GATUN_CALL_INIT;
    call.done = [](void* context, int code, const char*) { *static_cast<int*>(context) = code; };
    call.context = &ended;
    Exercise second({.count = 100'000}, rank, 3);
    const int started = second.start(comm, &call, nullptr);
    comm.reset();
    ++over;
    return started == 0 && ended == GATUN_ABORTED ? "" : "the operation ended with " + std::to_string(ended);
  });
}

// Two communicators with something pending in both and a rank that is stopped or dead: aborted in either order, by another
// thread than the one that waits, while the other rank goes the other way round.
TEST_CASE("failover__two_communicators_are_aborted_in_any_order", "[lib][system]") {
  const bool with_switch = GENERATE(true, false);
  const int how = GENERATE(SIGSTOP, SIGKILL);
  CAPTURE(with_switch, how);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& over = *new (memory) std::atomic<int>(0);
  const std::string nobody = "127.0.0.1:" + std::to_string(free_port());
  const std::string places[] = {"127.0.0.1:" + std::to_string(free_port()), "127.0.0.1:" + std::to_string(free_port())};
  const auto body = [&](int rank, Comm& given) -> std::string {
    const std::string address = with_switch ? given.stats().address : nobody;
    given.reset();
    std::vector<Comm> comms;
    for (int i : {0, 1}) {
      const RankOptions options{.address = address,
                                .job = i == 0 ? "first" : "second",
                                .timeout_ms = 100'000,
                                .fallback = "ring",
                                .rendezvous = places[i]};
      comms.emplace_back(3, rank, options);
      if (comms[i].code() != 0) return comms[i].error();
      if (const int code = gatun_barrier(comms[i])) return expect_code(0, code, comms[i], "barrier");
    }
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(100));  // the others have the last result
      const pid_t self = ::getpid();
      const pid_t reaper = how == SIGSTOP ? ::fork() : -1;
      if (reaper == 0) {  // ends the stopped one when the others are through
        for (int i = 0; i < 3000 && over < 2; ++i) std::this_thread::sleep_for(milliseconds(10));
        ::kill(self, SIGKILL);
        ::_exit(0);
      }
      ::raise(how);
    }
    std::string wrong[2];
    std::vector<std::thread> waiters;
    for (int i : {0, 1}) {
      waiters.emplace_back([&, i] {
        Exercise exercise({.count = 100'000}, rank, 3);
        int code = 0;
        while (code == 0) code = exercise.run(comms[i]);  // the first may be complete still
        const bool released = code == GATUN_ABORTED || code == GATUN_RANK_LOST;
        if (!released) wrong[i] = expect_code(GATUN_ABORTED, code, comms[i], "pending");
      });
    }
    std::this_thread::sleep_for(milliseconds(200));
    std::thread([&] {
      for (int i : {rank, 1 - rank}) gatun_comm_abort(comms[i]);
    }).join();
    for (std::thread& waiter : waiters) waiter.join();
    for (int i : {1 - rank, rank}) comms[i].reset();
    ++over;
    return wrong[0] + wrong[1];
  };
  run_rank_processes(3, {}, body, 2);
  ::munmap(memory, 4096);
}

// More ranks die than one can name at once; the daemon is dead too.
TEST_CASE("failover__a_killed_rank_is_named_on_the_ring", "[lib][system]") {
  const std::string rendezvous = "127.0.0.1:" + std::to_string(free_port());
  run_rank_processes(
      3, {.transport = "udp", .timeout_ms = 20'000, .fallback = "ring", .rendezvous = rendezvous},
      [](int rank, Comm& comm) {
        Exercise first({.count = 5000}, rank, 3);
        if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
        if (rank == 1) {
          std::this_thread::sleep_for(milliseconds(200));  // all others have the first
          ::raise(SIGKILL);
        }
        Exercise second({.count = 500'000}, rank, 3);
        const int code = second.run(comm);
        const std::string text = comm.last_error();
        if (code != GATUN_RANK_LOST || text.find("rank 1 (") == std::string::npos) return std::to_string(code) + ": " + text;
        return second.untouched();
      },
      1);
}
