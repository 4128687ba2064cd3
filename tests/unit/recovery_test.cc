#include "protocols/recovery.h"

#include <catch2/catch.hpp>
#include <string>

#include "protocols/worker.h"

using namespace gatun;
using Fate = RecoveryPlan::Fate;

namespace {

constexpr uint32_t kFirst = 0xfffffffe;  // numbers wrap after two operations

// One tree, window 4: operation kFirst of 8 chunks, then one of 3.
Holdings holdings(uint64_t next_index, std::vector<uint64_t> ahead = {}) {
  Holdings holdings;
  holdings.next_op = kFirst + 2;
  holdings.operations = {{kFirst, 8, {.count = 8}}, {kFirst + 1, 3, {.count = 3}}};
  Holdings::Tree tree{.next = {kFirst, next_index}, .ahead = {}};
  for (const uint64_t index : ahead) tree.ahead.push_back({kFirst, index});
  holdings.trees = {tree};
  return holdings;
}

std::string error_of(std::vector<Holdings> by_rank, uint32_t window = 4) {
  const auto plan = RecoveryPlan::make(by_rank, window);
  if (plan.ok()) return "";
  CHECK(plan.status().code() == Code::kInternal);
  return plan.status().message();
}

}  // namespace

TEST_CASE("make__hands_over_what_some_hold_and_reduces_what_none_does", "[recovery]") {
  // Rank 0 lacks 3 and 4, rank 1 lacks 5; nobody holds 6 and 7.
  const std::vector<Holdings> by_rank = {holdings(3, {5}), holdings(5)};
  auto plan = RecoveryPlan::make(by_rank, 4);
  REQUIRE(plan.ok());
  CHECK(plan->begin_op() == kFirst);
  CHECK(plan->end_op() == kFirst + 1);
  CHECK(plan->fate(kFirst) == Fate::kFinish);
  CHECK(plan->chunks(kFirst) == 8);
  const std::vector<RecoveryPlan::Handover> want = {{kFirst, 3, 1, 1}, {kFirst, 4, 1, 1}, {kFirst, 5, 0, 2}};
  CHECK(plan->handovers() == want);
  for (uint64_t index = 0; index < 8; ++index) {
    CHECK(plan->reduce_anew(kFirst, index) == (index >= 6));
    CHECK(plan->held(0, kFirst, index) == (index < 3 || index == 5));
    CHECK(plan->held(1, kFirst, index) == (index < 5));
  }
  CHECK_FALSE(plan->reduce_anew(kFirst + 1, 0));  // not the plan's
}

TEST_CASE("make__operation_done_at_one_rank_only", "[recovery]") {
  Holdings done = holdings(7);
  done.trees[0].next = {kFirst + 1, 0};
  auto plan = RecoveryPlan::make(std::vector{done, holdings(6)}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->end_op() == kFirst + 1);
  REQUIRE(plan->handovers().size() == 2);
  CHECK(plan->handovers()[0] == RecoveryPlan::Handover{kFirst, 6, 0, 2});
  CHECK_FALSE(plan->reduce_anew(kFirst, 7));
}

TEST_CASE("make__operation_of_which_only_chunks_ahead_are_held", "[recovery]") {
  Holdings ahead = holdings(6);
  ahead.trees[0].ahead = {{kFirst, 7}, {kFirst + 1, 0}};
  auto plan = RecoveryPlan::make(std::vector{ahead, holdings(6)}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->end_op() == kFirst + 2);
  CHECK(plan->handovers().size() == 2);
  CHECK(plan->reduce_anew(kFirst, 6));
  CHECK_FALSE(plan->reduce_anew(kFirst + 1, 0));
  CHECK(plan->reduce_anew(kFirst + 1, 1));
}

TEST_CASE("make__nothing_touched_is_an_empty_plan", "[recovery]") {
  Holdings none;
  none.next_op = kFirst;
  none.trees = {{.next = {kFirst, 0}, .ahead = {}}};
  Holdings more = none;
  more.next_op = kFirst + 1;
  more.operations = {{kFirst, 4, {}}};
  auto plan = RecoveryPlan::make(std::vector{none, more}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->begin_op() == kFirst);
  CHECK(plan->end_op() == kFirst);
}

TEST_CASE("make__disagreement_that_no_switch_has_seen", "[recovery]") {
  // Two trees. Of operation 0 rank 1 has one chunk, on tree 0, rank 0 none; both hold operation 1, on tree 1.
  Holdings a, b;
  a.next_op = b.next_op = 2;
  a.operations = {{1, 1, {.count = 1}}};
  b.operations = {{0, 1, {.count = 9}}, {1, 1, {.count = 1}}};
  a.trees = {{.next = {2, 0}, .ahead = {}}, {.next = {2, 1}, .ahead = {}}};
  b.trees = {{.next = {0, 0}, .ahead = {}}, {.next = {2, 1}, .ahead = {}}};
  auto plan = RecoveryPlan::make(std::vector{a, b}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->begin_op() == 0);
  CHECK(plan->end_op() == 2);
  CHECK(plan->fate(0) == Fate::kMismatch);
  CHECK(plan->mismatch(0, 7) ==
        "operation 7 differs between ranks: rank 0: nothing, no elements; rank 1: allreduce of 9 f32, sum");
  CHECK(plan->fate(1) == Fate::kFinish);
  CHECK(plan->handovers().empty());
}

TEST_CASE("make__a_refusal_one_rank_has_heard_of", "[recovery]") {
  Holdings heard = holdings(0), not_yet = holdings(0);
  heard.operations[0].contract.count = 5;
  heard.trees[0].next = {kFirst + 1, 0};
  heard.refused = {kFirst};
  auto plan = RecoveryPlan::make(std::vector{heard, not_yet}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->begin_op() == kFirst);
  CHECK(plan->end_op() == kFirst + 1);
  CHECK(plan->fate(kFirst) == Fate::kMismatch);
  heard.operations[0].contract.count = 8;
  CHECK_FALSE(error_of({heard, not_yet}).empty());
}

TEST_CASE("make__what_cannot_be_is_an_error", "[recovery]") {
  CHECK(error_of({holdings(3), holdings(5)}).empty());
  CHECK_FALSE(error_of({holdings(1), holdings(7)}).empty());       // six apart, window 4
  CHECK_FALSE(error_of({holdings(9), holdings(5)}).empty());       // no such chunk
  CHECK_FALSE(error_of({holdings(3, {3}), holdings(5)}).empty());  // ahead of itself
  CHECK_FALSE(error_of({holdings(3, {5, 4}), holdings(5)}).empty());
  CHECK_FALSE(error_of({holdings(0, {1, 2, 3, 4})}).empty());
  Holdings other = holdings(3);
  other.trees.resize(2);
  CHECK_FALSE(error_of({holdings(3), other}).empty());
  other = holdings(3);
  other.operations[1].op = kFirst;
  CHECK_FALSE(error_of({holdings(3), other}).empty());
  other = holdings(3);
  other.operations[0].chunks = 0;
  CHECK_FALSE(error_of({other, holdings(3)}).empty());
  other.next_op = kFirst;  // has not begun what rank 1 holds answers of
  other.operations.clear();
  other.trees[0].next = {kFirst, 0};
  CHECK_FALSE(error_of({other, holdings(3)}).empty());
  other = holdings(3);
  other.operations[0].chunks = UINT64_MAX;
  CHECK_FALSE(error_of({other, holdings(3, {5})}).empty());
  other = holdings(3);
  other.next_op += 1u << 31;
  error_of({other, holdings(3)});  // anything but a crash
  other = holdings(3);
  other.refused = {kFirst + 5};
  CHECK_FALSE(error_of({other, holdings(3)}).empty());
}

TEST_CASE("holdings__of_a_worker", "[recovery]") {
  Worker worker({.trees = 2, .window = 4, .window_initial = 4, .first_seq = 0xfffffffe, .first_op = 6});
  CHECK(worker.holdings().trees[1].next == Holdings::Chunk{6, 1});
  worker.submit(5, {.count = 5});
  worker.submit(0);
  worker.submit(1, {.count = 1});  // operation 8: tree 0
  std::vector<Worker::Chunk> sent;
  for (Worker::Chunk chunk; worker.poll_send(0, &chunk);) sent.push_back(chunk);
  REQUIRE(sent.size() == 6);
  const auto answer = [&](const Worker::Chunk& chunk) {
    return worker.on_result(chunk.tree, wire_seq(chunk.seq), static_cast<uint16_t>(chunk.op), false, 0);
  };
  for (const Worker::Chunk& chunk : sent) {
    if (chunk.op == 6 && (chunk.index == 0 || chunk.index == 1 || chunk.index == 4)) {
      const auto outcome = answer(chunk);
      CHECK(outcome.verdict == Worker::Verdict::kNews);
      CHECK(outcome.seq == chunk.seq);
    }
  }
  worker.freeze();
  for (const Worker::Chunk& chunk : sent) CHECK(answer(chunk).verdict == Worker::Verdict::kOld);
  CHECK_FALSE(worker.can_submit());
  CHECK(worker.poll_timer() == kNever);
  Worker::Chunk chunk;
  CHECK_FALSE(worker.poll_send(kSecond, &chunk));
  const Holdings holdings = worker.holdings();
  CHECK(holdings.next_op == 9);
  REQUIRE(holdings.operations.size() == 2);
  CHECK(holdings.operations[0] == Holdings::Operation{6, 5, {.count = 5}});
  CHECK(holdings.operations[1].op == 8);
  CHECK(holdings.trees[0].next == Holdings::Chunk{6, 2});
  CHECK(holdings.trees[0].ahead == std::vector<Holdings::Chunk>{{6, 4}});
  CHECK(holdings.trees[1].next == Holdings::Chunk{6, 3});
  CHECK(holdings.trees[1].ahead.empty());
  CHECK(holdings.refused.empty());
  auto plan = RecoveryPlan::make(std::vector{holdings, holdings}, 4);
  REQUIRE(plan.ok());
  CHECK(plan->end_op() == 7);
  CHECK(plan->reduce_anew(6, 2));
  CHECK_FALSE(plan->reduce_anew(6, 4));
}

TEST_CASE("holdings__refusal_until_all_have_heard_of_it", "[recovery]") {
  Worker worker({.trees = 1, .window = 4, .window_initial = 4});
  worker.submit(2);
  worker.submit(2);
  Worker::Chunk chunk;
  while (worker.poll_send(0, &chunk)) {
  }
  CHECK(worker.on_refused(0, 0, 0, 0).op_done);
  CHECK(worker.holdings().refused == std::vector<uint32_t>{0});
  CHECK(worker.holdings().trees[0].next == Holdings::Chunk{1, 0});
  REQUIRE(worker.poll_send(0, &chunk));
  CHECK(chunk.seq == 4);
  CHECK(worker.on_result(0, 4, 1, false, 0).verdict == Worker::Verdict::kNews);
  CHECK(worker.holdings().refused.empty());
}

TEST_CASE("holdings__only_the_latest_operations", "[recovery]") {
  Worker worker({.trees = 1, .window = 1, .window_initial = 1});
  Worker::Chunk chunk;
  for (uint32_t op = 0; op < 2000; ++op) {
    REQUIRE(worker.submit(1) == op);
    REQUIRE(worker.poll_send(0, &chunk));
    REQUIRE(worker.on_result(0, op, static_cast<uint16_t>(op), false, 0).op_done);
  }
  const Holdings holdings = worker.holdings();
  REQUIRE(holdings.operations.size() == kHoldingsOperationsMax);
  CHECK(holdings.operations.front().op == 2000 - kHoldingsOperationsMax);
  CHECK(holdings.operations.back().op == 1999);
}

TEST_CASE("retained__the_last_window", "[recovery]") {
  Retained retained(2, 4);
  uint32_t tree = 9, place = 9;
  CHECK_FALSE(retained.find(0, 0, &tree, &place));
  for (uint64_t i = 0; i < 6; ++i) CHECK(retained.on_news(1, 10 + i, 1, 2 * i) == (10 + i) % 4);
  for (uint64_t i = 0; i < 6; ++i) {
    REQUIRE(retained.find(1, 2 * i, &tree, &place) == (i >= 2));
    CHECK(tree == 1);
    if (i >= 2) CHECK(place == (10 + i) % 4);
  }
}
