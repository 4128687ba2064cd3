// Ranks as processes of their own: the collectives once more, and a rank that is killed or stopped in the middle.
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

TEST_CASE("processes__collectives", "[lib][system]") {
  for (const char* transport : {"shm", "udp"}) {
    INFO(transport);
    run_rank_processes(4, {.transport = transport, .trees = 2}, [](int rank, Comm& comm) {
      for (int collective = 0; collective < kCollectives; ++collective) {
        for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{300'001}}) {
          Exercise exercise({.collective = static_cast<Collective>(collective), .count = count, .root = 2, .salt = count},
                            rank, 4);
          if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "collective");
          if (std::string wrong = exercise.verify(); !wrong.empty()) return wrong;
        }
      }
      return std::string();
    });
  }
}

// SIGKILL in mid-operation: the survivors get an error that names the rank, long before their deadline, and all waiters go
// on.
TEST_CASE("processes__a_killed_rank_is_named", "[lib][system]") {
  for (const char* transport : {"shm", "udp"}) {
    INFO(transport);
    const auto body = [](int rank, Comm& comm) -> std::string {
      Exercise first({.count = 1000}, rank, 4);
      if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
      std::vector<std::unique_ptr<Exercise>> exercises;
      std::vector<gatun_request_t> requests(6, nullptr);
      for (gatun_request_t& request : requests) {
        exercises.push_back(std::make_unique<Exercise>(Case{.count = 2'000'000}, rank, 4));
        const int code = exercises.back()->start(comm, nullptr, &request);  // or at once, when the news is here already
        if (code != 0 && code != GATUN_RANK_LOST) return expect_code(0, code, comm, "start");
        if (rank == 3) ::kill(::getpid(), SIGKILL);
      }
      for (gatun_request_t& request : requests) {
        if (!request) continue;
        if (const int code = gatun_wait(&request, -1); code != GATUN_RANK_LOST)
          return expect_code(GATUN_RANK_LOST, code, comm, "wait");
      }
      const std::string text = comm.last_error();
      return text.find("rank 3") != std::string::npos ? "" : text;
    };
    run_rank_processes(4, {.transport = transport, .timeout_ms = 60'000}, body, 3);
  }
}

// A rank dies when the others are in a barrier. They get the error, and the same name serves the next job at once.
TEST_CASE("processes__death_in_a_barrier_leaves_the_name_free", "[lib][system]") {
  const auto body = [](int rank, Comm& comm) -> std::string {
    if (const int code = gatun_barrier(comm)) return expect_code(0, code, comm, "first");
    const std::string address = comm.stats().address;
    if (rank == 3) {
      gatun_request_t request = nullptr;
      (void)gatun_ibarrier(comm, nullptr, &request);
      ::kill(::getpid(), SIGKILL);
    }
    int code = gatun_barrier(comm);  // may be complete: the dead rank has contributed
    if (code == 0) code = gatun_barrier(comm);
    if (code != GATUN_RANK_LOST) return expect_code(GATUN_RANK_LOST, code, comm, "barrier");
    comm.reset();
    const Comm next(3, rank, {.address = address});
    if (next.code() != 0) return next.error();
    Exercise exercise({.count = 1000}, rank, 3);
    code = exercise.run(next);
    return code == 0 ? exercise.verify() : expect_code(0, code, next, "next job");
  };
  run_rank_processes(4, {.timeout_ms = 60'000}, body, 3);
}

// SIGSTOP: to the others the rank is only late. They end at their deadline, name it, and are idle afterwards; the stopped
// rank learns of it when it goes on.
TEST_CASE("processes__a_stopped_rank_is_named", "[lib][system]") {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& failed = *new (memory) std::atomic<int>(0);
  auto& stopped = *new (static_cast<char*>(memory) + 64) std::atomic<pid_t>(0);
  const auto cpu_ms = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  for (const char* transport : {"shm", "udp"}) {
    INFO(transport);
    failed = stopped = 0;
    const auto survive = [&](int rank, Comm& comm) -> std::string {
      Exercise exercise({.count = 100'000}, rank, 3);
      const int code = exercise.run(comm);
      if (code != GATUN_TIMEOUT) return expect_code(GATUN_TIMEOUT, code, comm, "beside a stopped rank");
      const std::string text = comm.last_error();
      if (text.find("rank 2 has not contributed") == std::string::npos) return text;
      const auto before = cpu_ms();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return cpu_ms() - before < 100 ? "" : "busy after the error: " + std::to_string(cpu_ms() - before) + " ms";
    };
    const auto body = [&](int rank, Comm& comm) -> std::string {
      if (const int code = gatun_barrier(comm)) return expect_code(0, code, comm, "first");
      if (rank == 2) {
        stopped = ::getpid();
        ::kill(::getpid(), SIGSTOP);
        const int code = gatun_barrier(comm);
        return code == GATUN_TIMEOUT ? "" : expect_code(GATUN_TIMEOUT, code, comm, "the stopped rank");
      }
      const std::string wrong = survive(rank, comm);
      if (++failed == 2 && stopped != 0) ::kill(stopped, SIGCONT);
      return wrong;
    };
    run_rank_processes(3, {.transport = transport, .timeout_ms = 2500}, body);
  }
  ::munmap(memory, 4096);
}
