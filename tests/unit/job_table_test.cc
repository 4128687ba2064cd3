#include "switch_model/job_table.h"

#include <catch2/catch.hpp>
#include <random>

namespace gatun {
namespace {

uint64_t link_bytes(uint32_t trees, uint32_t window, uint32_t payload_bytes) {
  return uint64_t{trees} * window * payload_bytes + 16 * payload_bytes;
}

JobTable::Config config(uint64_t mib = 256) {
  return {.memory_bytes = mib << 20, .packets_max = 2048, .link_bytes = link_bytes};
}

JobPlan plan(uint32_t job, uint32_t ranks, bool shm, uint32_t trees = 1) {
  return {.job = job,
          .ranks = ranks,
          .trees = trees,
          .window = 16,
          .payload_bytes = shm ? 65536u : 1408u,
          .shm = std::vector<bool>(ranks, shm)};
}

}  // namespace

TEST_CASE("admit__counts_what_a_job_holds_and_remove_gives_it_back", "[job_table]") {
  JobTable table(config());
  auto placement = table.admit(plan(1, 4, true, 2), 0);
  REQUIRE(placement.ok());
  CHECK(placement->window == 16);
  CHECK(placement->payload_bytes == 65536);
  CHECK(placement->packets == 0);
  const uint64_t expected = 2 * 32 * 65536 + 4 * link_bytes(2, 16, 65536);
  CHECK(placement->memory_bytes == expected);
  CHECK(table.memory_bytes() == expected);
  REQUIRE(table.admit(plan(2, 4, false), 0).ok());
  CHECK(table.packets(0) == 64);
  CHECK(table.jobs() == 2);
  CHECK(table.trees() == 3);
  CHECK(table.remove(1));
  CHECK_FALSE(table.remove(1));
  CHECK(table.remove(2));
  CHECK(table.jobs() == 0);
  CHECK(table.trees() == 0);
  CHECK(table.memory_bytes() == 0);
  CHECK(table.packets(0) == 0);
}

TEST_CASE("admit__mixed_ranks_pay_for_what_they_use", "[job_table]") {
  JobTable table(config());
  JobPlan mixed = plan(1, 4, false);
  mixed.shm = {true, false, false, false};
  auto placement = table.admit(mixed, 0);
  REQUIRE(placement.ok());
  CHECK(placement->packets == 3 * 16);
  CHECK(placement->memory_bytes == 32 * 1408 + link_bytes(1, 16, 1408));
}

TEST_CASE("admit__trees_spread_over_lanes", "[job_table]") {
  JobTable::Config lanes = config();
  lanes.lanes = 4;
  JobTable table(lanes);
  REQUIRE(table.admit(plan(1, 2, false, 3), 0).ok());
  auto placement = table.admit(plan(2, 2, false, 5), 0);
  REQUIRE(placement.ok());
  CHECK(placement->lanes == std::vector<uint8_t>{3, 0, 1, 2, 3});
  CHECK(table.trees() == 8);
}

TEST_CASE("admit__a_full_table_refuses_by_name", "[job_table]") {
  JobTable::Config small = config();
  small.jobs_max = 2;
  small.trees_max = 3;
  JobTable table(small);
  REQUIRE(table.admit(plan(1, 2, false, 2), 0).ok());
  CHECK(std::string(table.admit(plan(2, 2, false, 2), 0).status().message()) ==
        "lane 0 of the switch already serves 2 of at most 3 trees; lower the job's trees");
  REQUIRE(table.admit(plan(2, 2, false, 1), 0).ok());
  Status full = table.admit(plan(3, 2, false, 1), 0).status();
  CHECK(full.code() == Code::kRefused);
  CHECK(std::string(full.message()) == "the switch already serves its maximum of 2 jobs; raise its setting jobs");
  CHECK(table.jobs() == 2);
  CHECK(table.admit(plan(1, 2, false, 1), 0).status().code() == Code::kInternal);
}

TEST_CASE("admit__refusal_by_memory_says_how_much_there_is", "[job_table]") {
  JobTable table(config(1));
  JobPlan large = plan(1, 64, false);
  large.payload_bytes = 1 << 20;
  CHECK(std::string(table.admit(large, 0).status().message()) ==
        "it needs 4M of memory, and 1M of 1M are free; raise the switch's setting memory, or lower the job's trees or "
        "payload");
  CHECK(table.memory_bytes() == 0);
}

TEST_CASE("admit__refusal_by_packets", "[job_table]") {
  JobTable::Config few = config();
  few.packets_max = 48;
  JobTable table(few);
  CHECK(std::string(table.admit(plan(1, 32, false), 0).status().message()) ==
        "it may have to hold 64 packets, and 48 of 48 buffers of lane 0 are free; raise the switch's setting memory, or "
        "lower "
        "the job's trees");
}

TEST_CASE("admit__many_jobs_share_what_is_there", "[job_table]") {
  for (bool shm : {true, false}) {
    JobTable table(config());
    for (uint32_t job = 1; job <= 64; ++job) {
      auto placement = table.admit(plan(job, 4, shm), 0);
      INFO("job " << job << ": " << placement.status().message());
      REQUIRE(placement.ok());
      CHECK(placement->window >= 2);
      CHECK(placement->payload_bytes >= (shm ? 4096u : 1408u));
    }
    CHECK(table.memory_bytes() <= uint64_t{256} << 20);
    CHECK(table.packets(0) <= 2048);
  }
}

TEST_CASE("poll_expired__a_lease_that_is_not_renewed_ends", "[job_table]") {
  JobTable table(config());
  CHECK(table.poll_timer() == kNever);
  REQUIRE(table.admit(plan(1, 1, false), 0).ok());
  REQUIRE(table.admit(plan(2, 1, false), 10 * kSecond).ok());
  CHECK(table.poll_timer() == 90 * kSecond);
  uint32_t job = 0;
  CHECK_FALSE(table.poll_expired(89 * kSecond, &job));
  table.renew(1, 60 * kSecond);
  table.renew(99, 60 * kSecond);  // unknown: nothing happens
  CHECK_FALSE(table.poll_expired(95 * kSecond, &job));
  REQUIRE(table.poll_expired(100 * kSecond, &job));
  CHECK(job == 2);
  CHECK(table.remove(job));
  CHECK_FALSE(table.poll_expired(100 * kSecond, &job));
  CHECK(table.poll_timer() == 150 * kSecond);
}

TEST_CASE("job_table__random_histories_end_where_they_began", "[job_table]") {
  std::mt19937 generator(3);
  JobTable::Config lanes = config(64);
  lanes.lanes = 3;
  lanes.jobs_max = 8;
  JobTable table(lanes);
  std::vector<uint32_t> live;
  for (uint32_t step = 1; step < 5000; ++step) {
    if (generator() % 2 == 0 && !live.empty()) {
      const size_t at = generator() % live.size();
      CHECK(table.remove(live[at]));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (table.admit(plan(step, 1 + generator() % 64, generator() % 2, 1 + generator() % 16), 0).ok()) {
      live.push_back(step);
    }
    CHECK(table.jobs() == live.size());
    CHECK(table.memory_bytes() <= uint64_t{64} << 20);
    for (uint32_t lane = 0; lane < 3; ++lane) CHECK(table.packets(lane) <= 2048);
  }
  for (uint32_t job : live) CHECK(table.remove(job));
  CHECK(table.memory_bytes() == 0);
  CHECK(table.trees() == 0);
}

}  // namespace gatun
