// Every collective, type, operator and awkward size against a plain reference, by 1 to 4 ranks, over shm and udp.
#include <catch2/catch.hpp>
#include <set>

#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

// Runs one case after the other on a rank; the same list on all.
std::string run_cases(const std::vector<Case>& cases, int rank, int ranks, Comm& comm) {
  for (const Case& c : cases) {
    Exercise exercise(c, rank, ranks);
    std::string wrong = expect_code(0, exercise.run(comm), comm, text(c));
    if (wrong.empty()) wrong = exercise.verify();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::vector<Case> types_and_ops(uint64_t count) {
  std::vector<Case> cases;
  for (int type = 0; type < kTypes; ++type) {
    for (int op = 0; op < kOps; ++op) {
      cases.push_back(
          {.type = static_cast<Type>(type), .op = static_cast<Op>(op), .count = count, .salt = static_cast<uint64_t>(op)});
    }
  }
  return cases;
}

// Elements at every boundary of a job with this payload and window.
std::vector<uint64_t> awkward_counts(uint64_t payload_bytes, uint64_t window, uint64_t trees, size_t elem) {
  const uint64_t chunk = payload_bytes / elem;
  std::set<uint64_t> counts{0, 1, 2};
  for (const uint64_t base : {chunk, 2 * chunk, window * chunk, 2 * window * chunk, trees * window * chunk, trees * chunk}) {
    counts.insert({base - 1, base, base + 1});
  }
  return {counts.begin(), counts.end()};
}

std::vector<Case> sizes_of_collectives(uint64_t payload_bytes, uint64_t window, uint64_t trees, int ranks) {
  std::vector<Case> cases;
  uint64_t salt = 0;
  for (int collective = 0; collective < kCollectives; ++collective) {
    for (const uint64_t count : awkward_counts(payload_bytes, window, trees, 4)) {
      ++salt;
      cases.push_back({.collective = static_cast<Collective>(collective),
                       .type = Type::kF32,
                       .count = count,
                       .root = static_cast<int>(salt % static_cast<uint64_t>(ranks)),
                       .in_place = salt % 3 == 0,
                       .misalign = salt % 7,
                       .salt = salt});
    }
  }
  return cases;
}

void run_table(const std::string& transport, int trees) {
  LocalSwitch local;
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(transport << ", " << ranks << " ranks, " << trees << " trees");
    const RankOptions options{
        .address = local.address(), .transport = transport, .trees = trees, .window = 4, .payload_bytes = 1024};
    run_ranks(ranks, options, [&](int rank, Comm& comm) {
      const gatun_stats_t stats = comm.stats();
      if (ranks > 1 && (stats.transport != transport || stats.payload_bytes != 1024))
        return std::string("another transport or payload");
      std::string wrong = run_cases(types_and_ops(1500), rank, ranks, comm);
      if (wrong.empty())
        wrong = run_cases(sizes_of_collectives(1024, 4, static_cast<uint64_t>(trees), ranks), rank, ranks, comm);
      return wrong;
    });
  }
}

}  // namespace

TEST_CASE("collectives__table_over_shm", "[lib][system]") {
  run_table("shm", 1);
}
TEST_CASE("collectives__table_over_shm_with_trees", "[lib][system]") {
  run_table("shm", 3);
}
TEST_CASE("collectives__table_over_udp", "[lib][system]") {
  run_table("udp", 1);
}
TEST_CASE("collectives__table_over_udp_with_trees", "[lib][system]") {
  run_table("udp", 4);
}
