// Ranks that disagree: the same error on all, which names ranks and values; no output is touched; the next operation works.
#include <catch2/catch.hpp>

#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Rank 0 calls `odd`, the others `common`; every rank must fail, and then agree.
std::string disagree(int rank, int ranks, Comm& comm, const Case& odd, const Case& common,
                     const std::vector<std::string>& parts) {
  Exercise exercise(rank == 0 ? odd : common, rank, ranks);
  const int code = exercise.run(comm);
  if (code != GATUN_MISMATCH) return expect_code(GATUN_MISMATCH, code, comm, "disagreement");
  const std::string text = comm.last_error();
  for (const std::string& part : parts) {
    if (!says(text, part)) return "'" + text + "' does not say '" + part + "'";
  }
  if (std::string wrong = exercise.untouched(); !wrong.empty()) return wrong;
  Exercise after({.count = 10'000, .salt = 3}, rank, ranks);
  if (const int again = after.run(comm)) return expect_code(0, again, comm, "the operation after");
  return after.verify();
}

void run_disagreement(const Case& odd, const Case& common, const std::vector<std::string>& parts, int trees = 1) {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    INFO(transport << ", " << trees << " trees: " << text(odd) << " against " << text(common));
    run_ranks(4, {.address = local.address(), .transport = transport, .trees = trees},
              [&](int rank, Comm& comm) { return disagree(rank, 4, comm, odd, common, parts); });
  }
}

}  // namespace

TEST_CASE("mismatch__lengths_that_differ_by_two_elements", "[lib][system]") {
  run_disagreement({.count = 409600}, {.count = 409598}, {"rank 0", "ranks 1-3", "409600", "409598"});
}

TEST_CASE("mismatch__lengths_far_apart", "[lib][system]") {
  run_disagreement({.count = 4096}, {.count = 3276800}, {"4096 f32", "3276800 f32"}, 3);
  run_disagreement({.count = 1 * 2560}, {.count = 2 * 2560}, {"2560", "5120"});
  run_disagreement({.count = 100 * 2560}, {.count = 200 * 2560}, {"256000", "512000"});
}

TEST_CASE("mismatch__every_field_of_the_contract", "[lib][system]") {
  run_disagreement({.type = Type::kI32, .count = 100}, {.type = Type::kF32, .count = 100}, {"i32", "f32"});
  run_disagreement({.op = Op::kMax, .count = 100}, {.op = Op::kSum, .count = 100}, {"max", "sum"});
  run_disagreement({.collective = Collective::kBroadcast, .count = 100, .root = 1},
                   {.collective = Collective::kBroadcast, .count = 100, .root = 2}, {"root 1", "root 2"});
  run_disagreement({.collective = Collective::kBarrier}, {.count = 100}, {"barrier", "allreduce of 100"}, 2);
  run_disagreement({.collective = Collective::kReduceScatter, .count = 25}, {.count = 100},
                   {"reduce_scatter of 25", "allreduce of 100"}, 2);
}

// One rank brings nothing, and all hear of it; then all go on.
TEST_CASE("mismatch__zero_elements_on_one_rank", "[lib][system]") {
  const LocalSwitch local;
  const int trees = GENERATE(1, 2, 3);
  run_ranks(3, {.address = local.address(), .transport = "shm", .trees = trees}, [&](int rank, Comm& comm) {
    Exercise exercise({.count = rank == 0 ? 0u : 50u}, rank, 3);
    const int code = exercise.run(comm);
    if (code != GATUN_MISMATCH) return expect_code(GATUN_MISMATCH, code, comm, "zero against 50");
    if (!says(comm.last_error(), rank == 0 ? "allreduce of 50 f32" : "allreduce of 0 f32"))
      return "'" + comm.last_error() + "' does not name the other call";
    for (int round = 0; round < 20; ++round) {
      Exercise after({.count = 500, .salt = static_cast<uint64_t>(round)}, rank, 3);
      if (const int again = after.run(comm)) return expect_code(0, again, comm, "after");
      if (std::string wrong = after.verify(); !wrong.empty()) return wrong;
    }
    return std::string();
  });
}

TEST_CASE("mismatch__zero_elements_keep_numbers_in_step", "[lib][system]") {
  const LocalSwitch local;
  run_ranks(2, {.address = local.address(), .transport = "udp", .trees = 2}, [](int rank, Comm& comm) {
    for (uint64_t round = 0; round < 100; ++round) {
      Exercise exercise({.count = round % 3 == 0 ? 0 : round, .salt = round}, rank, 2);
      if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "round");
      if (std::string wrong = exercise.verify(); !wrong.empty()) return wrong;
    }
    return std::string();
  });
}

// In a pipeline over several trees exactly the odd operations fail; what is before and behind them is right.
TEST_CASE("mismatch__within_a_pipeline", "[lib][system]") {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    const RankOptions options{.address = local.address(),
                              .transport = transport,
                              .trees = 3,
                              .window = 8,
                              .payload_bytes = 512,
                              .wrap = transport == std::string("udp") ? lossy(5, 0.01, 0.01, 0.01, 0) : TransportWrapper()};
    run_ranks(3, options, [](int rank, Comm& comm) {
      constexpr int kCount = 120;
      std::vector<std::unique_ptr<Exercise>> exercises;
      std::vector<gatun_request_t> requests(kCount, nullptr);
      const auto odd = [](int i) { return i % 17 == 5 || i % 31 == 30; };
      for (int i = 0; i < kCount; ++i) {
        const uint64_t count = static_cast<uint64_t>(1 + i * 37 % 900) + (odd(i) && rank == 1 ? 1 : 0);
        exercises.push_back(std::make_unique<Exercise>(Case{.count = count, .salt = static_cast<uint64_t>(i)}, rank, 3));
        const int code = exercises.back()->start(comm, nullptr, &requests[static_cast<size_t>(i)]);
        if (code != 0) return expect_code(0, code, comm, "start " + std::to_string(i));
      }
      for (int i = 0; i < kCount; ++i) {
        const int code = gatun_wait(&requests[static_cast<size_t>(i)], -1);
        if (code != (odd(i) ? GATUN_MISMATCH : 0))
          return expect_code(odd(i) ? GATUN_MISMATCH : 0, code, comm, "operation " + std::to_string(i));
        const std::string wrong =
            odd(i) ? exercises[static_cast<size_t>(i)]->untouched() : exercises[static_cast<size_t>(i)]->verify();
        if (!wrong.empty()) return wrong;
      }
      return std::string();
    });
  }
}
