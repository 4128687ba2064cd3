#include "tests/system/lib_ranks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace gatun {
namespace {

// A child's life; its exit code.
int rank_process(int ranks, int rank, RankOptions options, const RankBody& body, int port_pipe) {
  uint16_t port = 0;
  if (::read(port_pipe, &port, sizeof port) != sizeof port) return 2;
  options.address = "127.0.0.1:" + std::to_string(port);
  Comm comm(ranks, rank, options);
  const std::string wrong = comm.code() == 0 ? body(rank, comm) : "create: " + comm.error();
  comm.reset();
  if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
  return wrong.empty() ? 0 : 1;
}

}  // namespace

void run_ranks(int ranks, const RankOptions& options, const RankBody& body) {
  std::vector<std::string> wrong(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Comm comm(ranks, rank, options);
      wrong[static_cast<size_t>(rank)] = comm.code() == 0 ? body(rank, comm) : "create: " + comm.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank);
    CHECK(wrong[static_cast<size_t>(rank)] == "");
  }
}

void run_rank_processes(int ranks, RankOptions options, const RankBody& body, int expect_killed) {
  int address[2];
  REQUIRE(::pipe(address) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(rank_process(ranks, rank, options, body, address[0]));
    children.push_back(child);
  }
  const LocalSwitch local;
  const uint16_t port = local.port();
  for (int rank = 0; rank < ranks; ++rank) CHECK(::write(address[1], &port, sizeof port) == sizeof port);
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    REQUIRE(::waitpid(children[static_cast<size_t>(rank)], &status, 0) == children[static_cast<size_t>(rank)]);
    INFO("rank " << rank << ", status " << status);
    CHECK((rank == expect_killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
  ::close(address[0]);
  ::close(address[1]);
}

}  // namespace gatun
