// The board that local ranks share, and the children that cannot be left behind.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "host/tools/perf/children.h"
#include "host/tools/perf/group.h"

namespace gatun::perf {
namespace {

std::string fresh_path() {
  static int count = 0;
  const auto path = std::filesystem::temp_directory_path() /
                    ("gatun-board-test-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  std::filesystem::remove(path);
  return path.string();
}

}  // namespace

TEST_CASE("board__ranks_exchange_in_order", "[perf][board]") {
  constexpr int kRanks = 3;
  const std::string path = fresh_path();
  std::string error;
  const auto board = Board::create(path, kRanks, &error);
  REQUIRE(board != nullptr);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = make_board_group(board.get(), rank);
      for (int round = 0; round < 2000; ++round) {
        const int mine = round * kRanks + rank;
        int all[kRanks] = {};
        if (!group->allgather(&mine, sizeof(mine), all).empty()) ++wrong;
        for (int other = 0; other < kRanks; ++other) wrong += all[other] != round * kRanks + other;
      }
      Spread spread;
      wrong += !over_ranks(*group, rank + 1.0, &spread).empty();
      wrong += spread.total != 6 || spread.least != 1 || spread.most != 3 || spread.mean != 2 || spread.first != 1;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  std::filesystem::remove(path);
}

TEST_CASE("board__give_up_ends_a_barrier", "[perf][board]") {
  const std::string path = fresh_path();
  std::string error;
  const auto board = Board::create(path, 2, &error);
  REQUIRE(board != nullptr);
  const auto group = make_board_group(board.get(), 0);
  std::string end;
  std::thread waiter([&] { end = group->barrier(); });
  board->give_up();
  waiter.join();
  CHECK(end == kGivenUpText);
  std::filesystem::remove(path);
}

TEST_CASE("board__first_error_stays", "[perf][board]") {
  const std::string path = fresh_path();
  std::string error;
  const auto board = Board::create(path, 2, &error);
  REQUIRE(board != nullptr);
  const auto same = Board::open(path, &error);
  REQUIRE(same != nullptr);
  same->fail(1, "cause");
  same->fail(1, "effect");
  CHECK(board->failed(1));
  CHECK_FALSE(board->failed(0));
  CHECK(board->error_of(1) == "cause");
  same->finish(0, 1);
  CHECK(board->finished(0));
  CHECK(board->code_of(0) == 1);
  CHECK(Board::create(path, 2, &error) == nullptr);  // never somebody else's file
  std::filesystem::remove(path);
}

TEST_CASE("children__exits_are_told_and_nothing_is_left", "[perf][children]") {
  pid_t sleeper = 0;
  {
    Children children;
    const pid_t ends = children.fork_body([] { return 7; });
    sleeper = children.fork_body([] {
      for (;;) pause();
      return 0;
    });
    Children::Exit exit;
    while (exit.pid == 0) children.wait({}, 1000, &exit);
    CHECK(exit.pid == ends);
    CHECK(exit.text() == "ended with code 7");
    CHECK(children.running(sleeper));
    int output = -1;
    std::string error;
    const pid_t missing = children.spawn({"/nowhere/program"}, true, &output, &error);
    exit = {};
    while (exit.pid != missing) {
      if (children.wait({}, 1000, &exit) == Children::Event::kTimeout) break;
    }
    CHECK(exit.value == 127);
    char words[256] = "";
    CHECK(read(output, words, sizeof(words) - 1) > 0);
    CHECK(std::string(words).find("/nowhere/program") != std::string::npos);
    close(output);
  }
  CHECK(kill(sleeper, 0) == -1);  // killed and waited for
}

}  // namespace gatun::perf
