#include <catch2/catch.hpp>

#include "switch_model/daemon/snapshot.h"

using namespace gatun;

namespace {

constexpr TimeNs kNow = 1000 * kSecond;

ControlFacts::Job known(uint32_t handle, const std::string& name, bool running = true) {
  return {.state = {.job = handle, .name = name, .ranks = 3, .joined = running ? 3u : 1u, .running = running},
          .memory_bytes = 4096};
}

TreeView tree(uint32_t handle, uint8_t number, TimeNs since = kNever, uint64_t missing = 0) {
  TreeView view{.job = handle, .tree = number, .banks = 32, .open = missing ? 1u : 0u, .waiting_since = since};
  view.missing = missing;
  view.operation = 40u + number;
  view.stats.operations = 50u + number;
  view.stats.chunks = 100;
  return view;
}

Lane::View lane(std::vector<TreeView> trees) {
  Lane::View view;
  view.count = trees.size();
  view.trees = std::move(trees);
  view.trees.resize(view.count + 5);  // room that is not used counts for nothing
  return view;
}

}  // namespace

TEST_CASE("make_snapshot__adds_a_jobs_trees_over_lanes", "[snapshot]") {
  const Lane::View one = lane({tree(7, 0), tree(8, 0)}), two = lane({tree(7, 1), tree(99, 0)});
  const Snapshot snapshot = make_snapshot({.jobs = {known(7, "a"), known(8, "b")}}, {&one, &two}, 10 * kSecond, kNow);
  REQUIRE(snapshot.jobs.size() == 2);
  CHECK(snapshot.lanes.size() == 2);
  const Snapshot::Job& a = snapshot.jobs[0];
  CHECK(a.name == "a");
  CHECK(a.state == Snapshot::kRunning);
  CHECK(a.trees == 2);
  CHECK(a.banks == 64);
  CHECK(a.stats.chunks == 200);
  CHECK(a.stats.operations == 51);  // the most, not the sum
  CHECK(a.waited == 0);
  CHECK(snapshot.jobs[1].stats.chunks == 100);
}

TEST_CASE("make_snapshot__the_longest_wait_names_the_ranks", "[snapshot]") {
  const Lane::View view = lane({tree(7, 0, kNow - 2 * kSecond, 0b110), tree(7, 1, kNow - 3 * kSecond, 0b100)});
  const ControlFacts facts{.jobs = {known(7, "a")}};
  const Snapshot::Job job = make_snapshot(facts, {&view}, 2500 * kMs, kNow).jobs[0];
  CHECK(job.state == Snapshot::kStalled);
  CHECK(job.waited == 3 * kSecond);
  CHECK(job.missing == std::vector<uint32_t>{2});
  CHECK(job.operation == 41);
  CHECK(make_snapshot(facts, {&view}, 3 * kSecond, kNow).jobs[0].state == Snapshot::kRunning);  // not longer
  CHECK(make_snapshot(facts, {&view}, 0, kNow).jobs[0].state == Snapshot::kRunning);            // never
}

TEST_CASE("make_snapshot__a_job_that_joins_is_not_stalled", "[snapshot]") {
  const Lane::View view = lane({tree(7, 0, kNow - 60 * kSecond, 1)});
  const Snapshot snapshot = make_snapshot({.jobs = {known(7, "a", false)}}, {&view}, kSecond, kNow);
  CHECK(snapshot.jobs[0].state == Snapshot::kJoining);
  CHECK(snapshot.jobs[0].joined == 1);
}

TEST_CASE("make_snapshot__names_are_utf8_and_differ", "[snapshot]") {
  const ControlFacts facts{.jobs = {known(1, "a\xff"), known(2, "a\xfe"), known(3, "\xc3\xa4")}};
  const Snapshot snapshot = make_snapshot(facts, {}, 0, kNow);
  CHECK(snapshot.jobs[0].name == "a\xef\xbf\xbd");
  CHECK(snapshot.jobs[1].name == "a\xef\xbf\xbd #2");
  CHECK(snapshot.jobs[2].name == "\xc3\xa4");
}
