// Ranks as processes of their own: the collectives once more, and a rank that is killed in the middle.
#include <signal.h>
#include <unistd.h>

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
