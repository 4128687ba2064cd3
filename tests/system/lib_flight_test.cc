// Many operations in flight: from several threads, over lossy paths, near the wrap of every counter, in several groups.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <thread>

#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

// Starts `count` random operations, at most `depth` unfinished, and checks each. The same seed on all ranks.
std::string run_random(int rank, int ranks, gatun_comm_t comm, uint64_t seed, int count, int depth, uint64_t count_max) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Exercise>> exercises(static_cast<size_t>(depth));
  std::vector<gatun_request_t> requests(static_cast<size_t>(depth), nullptr);
  for (int i = 0; i < count + depth; ++i) {
    const auto slot = static_cast<size_t>(i % depth);
    if (requests[slot]) {
      const int code = gatun_wait(&requests[slot], -1);
      if (code != 0) return expect_code(0, code, comm, "operation " + std::to_string(i - depth));
      if (std::string wrong = exercises[slot]->verify(); !wrong.empty()) return wrong;
    }
    if (i >= count) continue;
    exercises[slot] = std::make_unique<Exercise>(random_case(random, ranks, count_max), rank, ranks);
    const int code = exercises[slot]->start(comm, nullptr, &requests[slot]);
    if (code != 0) return expect_code(0, code, comm, "start");
  }
  return "";
}

void run_lossy(uint64_t seed, int ranks, int trees, int operations) {
  const LocalSwitch local({.first_seq = seed % 2 == 0 ? -1 : 0xffffff00ll});
  const RankOptions options{.address = local.address(),
                            .transport = "udp",
                            .trees = trees,
                            .window = 16,
                            .payload_bytes = 512,
                            .wrap = lossy(seed, 0.02, 0.02, 0.02, 0.01)};
  run_ranks(ranks, options, [&](int rank, Comm& comm) { return run_random(rank, ranks, comm, seed, operations, 4, 4000); });
}

}  // namespace

TEST_CASE("flight__random_operations_over_shm", "[lib][system]") {
  const LocalSwitch local;
  const RankOptions options{.address = local.address(), .transport = "shm", .trees = 2, .window = 8, .payload_bytes = 1024};
  run_ranks(3, options, [](int rank, Comm& comm) { return run_random(rank, 3, comm, 7, 600, 16, 5000); });
}

TEST_CASE("flight__random_operations_over_lossy_udp", "[lib][system]") {
  for (uint64_t seed = 1; seed <= 4; ++seed) run_lossy(seed, seed % 2 == 0 ? 2 : 3, static_cast<int>(seed % 3 + 1), 120);
}

// Deeper than the pool of requests and the window of operations: the calls drive until there is room.
TEST_CASE("flight__a_thousand_started_before_the_first_wait", "[lib][system]") {
  const LocalSwitch local;
  run_ranks(2, {.address = local.address(), .transport = "shm"}, [](int rank, Comm& comm) {
    constexpr int kCount = 1000;
    std::vector<std::unique_ptr<Exercise>> exercises;
    std::vector<gatun_request_t> requests(kCount, nullptr);
    for (int i = 0; i < kCount; ++i) {
      exercises.push_back(
          std::make_unique<Exercise>(Case{.count = static_cast<uint64_t>(i), .salt = static_cast<uint64_t>(i)}, rank, 2));
      if (const int code = exercises.back()->start(comm, nullptr, &requests[static_cast<size_t>(i)]))
        return expect_code(0, code, comm, "start");
    }
    for (int i = kCount; i-- > 0;) {
      if (const int code = gatun_wait(&requests[static_cast<size_t>(i)], -1)) return expect_code(0, code, comm, "wait");
      if (std::string wrong = exercises[static_cast<size_t>(i)]->verify(); !wrong.empty()) return wrong;
    }
    return std::string();
  });
}

// Chunk and operation numbers that pass 2^16, 2^31 and 2^32, with duplicates and late packets of the old lap.
TEST_CASE("flight__counters_wrap", "[lib][system]") {
  for (const auto& [seq, op] : std::vector<std::pair<int64_t, uint32_t>>{
           {0xfff0, 0xfff8}, {0x7fffffe0, 0x7ffffff8}, {0xffffffe0, 0xfffffff8}, {0x1fffffffe0, 0xfffffff8}}) {
    const LocalSwitch local({.first_seq = seq, .first_op = op});
    const RankOptions udp{.address = local.address(),
                          .job = "udp",
                          .transport = "udp",
                          .window = 8,
                          .payload_bytes = 256,
                          .wrap = lossy(static_cast<uint64_t>(seq), 0.01, 0.05, 0.03, 0)};
    run_ranks(2, udp, [&](int rank, Comm& comm) { return run_random(rank, 2, comm, op, 60, 4, 1500); });
    const RankOptions shm{
        .address = local.address(), .job = "shm", .transport = "shm", .trees = 2, .window = 4, .payload_bytes = 256};
    run_ranks(2, shm, [&](int rank, Comm& comm) { return run_random(rank, 2, comm, op, 60, 4, 1500); });
  }
}

// Two threads of every rank issue named operations in an order that the scheduler chooses: they match, or fail on all ranks.
TEST_CASE("flight__tagged_operations_match_or_fail_on_all", "[lib][system]") {
  const LocalSwitch local;
  constexpr int kRanks = 3, kRounds = 300;
  struct Outcome {
    int code[2];
    float value[2];
  };
  std::vector<std::vector<Outcome>> outcomes(kRanks, std::vector<Outcome>(kRounds));
  run_ranks(kRanks, {.address = local.address(), .transport = "shm"}, [&](int rank, Comm& comm) {
    for (int round = 0; round < kRounds; ++round) {
      Outcome& outcome = outcomes[static_cast<size_t>(rank)][static_cast<size_t>(round)];
      const auto issue = [&](int which) {
        const float mine = static_cast<float>(which == 0 ? 1 : 100) * static_cast<float>(round + 1);
        outcome.value[which] = -1;
        gatun_call_t call = GATUN_CALL_INIT;
        call.tag = static_cast<uint64_t>(which) + 1;
        gatun_request_t request = nullptr;
        outcome.code[which] = gatun_iallreduce(&mine, &outcome.value[which], 1, GATUN_F32, GATUN_SUM, comm, &call, &request);
        if (request) outcome.code[which] = gatun_wait(&request, -1);
      };
      std::thread other(issue, 1);
      issue(0);
      other.join();
      if (const int code = gatun_barrier(comm)) return expect_code(0, code, comm, "barrier");
    }
    return std::string();
  });
  int matched = 0, failed = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int which = 0; which < 2; ++which) {
      const Outcome& first = outcomes[0][static_cast<size_t>(round)];
      for (int rank = 0; rank < kRanks; ++rank) {
        const Outcome& outcome = outcomes[static_cast<size_t>(rank)][static_cast<size_t>(round)];
        REQUIRE(outcome.code[which] == first.code[which]);
        const float sum = static_cast<float>(which == 0 ? 1 : 100) * static_cast<float>(round + 1) * kRanks;
        REQUIRE((outcome.code[which] == 0 || outcome.code[which] == GATUN_MISMATCH));
        REQUIRE(outcome.value[which] == (outcome.code[which] == 0 ? sum : -1));
      }
      ++(first.code[which] == 0 ? matched : failed);
    }
  }
  INFO(matched << " matched, " << failed << " failed on all ranks");
  CHECK(matched > 0);
}

// Many groups over the same ranks, used in opposite order by the two halves.
TEST_CASE("flight__groups_in_opposite_order", "[lib][system]") {
  const LocalSwitch local;
  constexpr size_t kGroups = 40;
  run_ranks(4, {.address = local.address()}, [&](int rank, Comm& first) {
    std::vector<Comm> groups;
    for (size_t i = 1; i < kGroups; ++i) {
      groups.emplace_back(4, rank, RankOptions{.address = local.address(), .job = "group " + std::to_string(i)});
      if (groups.back().code() != 0) return groups.back().error();
    }
    groups.push_back(std::move(first));
    for (int round = 0; round < 10; ++round) {
      std::vector<std::unique_ptr<Exercise>> exercises(kGroups);
      std::vector<gatun_request_t> requests(kGroups, nullptr);
      const auto nth = [&](size_t i) { return rank % 2 == 0 ? i : kGroups - 1 - i; };
      for (size_t i = 0; i < kGroups; ++i) {
        const size_t group = nth(i);
        exercises[group] = std::make_unique<Exercise>(Case{.count = 3000, .salt = group}, rank, 4);
        const int code = exercises[group]->start(groups[group], nullptr, &requests[group]);
        if (code != 0) return expect_code(0, code, groups[group], "start");
      }
      for (size_t i = 0; i < kGroups; ++i) {
        const size_t group = nth(i);
        const int code = gatun_wait(&requests[group], -1);
        if (code != 0) return expect_code(0, code, groups[group], "wait");
        if (std::string wrong = exercises[group]->verify(); !wrong.empty()) return wrong;
      }
    }
    return std::string();
  });
}

// More ranks than a small mask holds, and an element more than a power of two of chunks.
TEST_CASE("flight__many_ranks_and_odd_lengths", "[lib][system]") {
  const LocalSwitch local;
  for (const auto& [ranks, count] : {std::pair{33, uint64_t{10'007}}, std::pair{2, uint64_t{1'024'001}}}) {
    run_ranks(ranks, {.address = local.address(), .trees = 2}, [ranks = ranks, count = count](int rank, Comm& comm) {
      Exercise exercise({.count = count, .misalign = 1}, rank, ranks);
      const int code = exercise.run(comm);
      return code == 0 ? exercise.verify() : expect_code(0, code, comm, "allreduce");
    });
  }
}

// The bits of a sum do not depend on the order of arrival.
TEST_CASE("flight__shuffled_arrival_gives_the_same_bits", "[lib][system]") {
  const LocalSwitch local;
  std::vector<std::array<float, 4>> orders;  // every way to give these to four ranks
  std::array<float, 4> parts = {-1e8f, 1.0f, 3.0f, 1e8f};
  do orders.push_back(parts);
  while (std::next_permutation(parts.begin(), parts.end()));
  std::vector<float> first;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::vector<std::vector<float>> results(4);
    const RankOptions options{.address = local.address(),
                              .job = std::to_string(seed),
                              .transport = "udp",
                              .payload_bytes = 1024,
                              .wrap = lossy(seed, 0.01, 0.02, 0.05, 0)};
    run_ranks(4, options, [&](int rank, Comm& comm) {
      std::vector<float> send(2000), recv(2000);
      for (size_t i = 0; i < send.size(); ++i) send[i] = orders[i % orders.size()][static_cast<size_t>(rank)];
      for (int round = 0; round < 5; ++round) {
        if (const int code = gatun_allreduce(send.data(), recv.data(), send.size(), GATUN_F32, GATUN_SUM, comm)) {
          return expect_code(0, code, comm, "allreduce");
        }
      }
      results[static_cast<size_t>(rank)] = recv;
      return std::string();
    });
    if (first.empty()) first = results[0];
    for (const std::vector<float>& result : results) {
      if (result.size() != first.size()) continue;  // that rank failed, and has said so
      CHECK(std::memcmp(result.data(), first.data(), first.size() * sizeof(float)) == 0);
    }
  }
  REQUIRE(first.size() == 2000);
  for (size_t i = 0; i < orders.size(); ++i) {
    const auto& [a, b, c, d] = orders[i];
    CHECK(first[i] == ((a + b) + c) + d);  // the order of the ranks
  }
}

// Sizes around the usual limits, verified many times over.
TEST_CASE("flight__sizes_around_limits_repeated", "[lib][system]") {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    run_ranks(2, {.address = local.address(), .transport = transport}, [](int rank, Comm& comm) {
      for (const uint64_t base : {uint64_t{16384}, uint64_t{262144}, uint64_t{1441792}}) {
        for (const uint64_t count : {base - 1, base, base + 1}) {
          for (int repeat = 0; repeat < 3; ++repeat) {
            Exercise exercise({.count = count, .salt = count + static_cast<uint64_t>(repeat)}, rank, 2);
            if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "allreduce");
            if (std::string wrong = exercise.verify(); !wrong.empty()) return wrong;
          }
        }
      }
      return std::string();
    });
  }
}
