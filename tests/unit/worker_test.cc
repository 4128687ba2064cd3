#include "protocols/worker.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace gatun;
using Verdict = Worker::Verdict;

namespace {

constexpr Seq kFirst = (Seq{1} << 32) - 3;  // the wire number wraps after three chunks
constexpr uint32_t kFirstOp = 0xfffffffe;

Worker::Config config(uint32_t window = 4, uint32_t trees = 1) {
  return {.trees = trees, .window = window, .window_initial = window, .first_seq = kFirst, .first_op = kFirstOp};
}

std::vector<Worker::Chunk> drain(Worker& worker, TimeNs now) {
  std::vector<Worker::Chunk> chunks;
  Worker::Chunk chunk;
  while (worker.poll_send(now, &chunk)) chunks.push_back(chunk);
  return chunks;
}

Worker::Outcome answer(Worker& worker, const Worker::Chunk& chunk, TimeNs now = 0, bool congested = false) {
  return worker.on_result(chunk.tree, wire_seq(chunk.seq), static_cast<uint16_t>(chunk.op), congested, now);
}

}  // namespace

TEST_CASE("submit__zero_chunks_is_done_and_counts", "[worker]") {
  Worker worker(config());
  CHECK(worker.submit(0) == kFirstOp);
  CHECK(worker.idle());
  CHECK(worker.submit(0) == kFirstOp + 1);
  CHECK(worker.next_op() == kFirstOp + 2);
  CHECK(worker.submit(1) == 0);
  CHECK_FALSE(worker.idle());
}

TEST_CASE("submit__bounded", "[worker]") {
  Worker worker(config());
  for (uint32_t i = 0; i < kOperationsMax; ++i) {
    REQUIRE(worker.can_submit());
    worker.submit(1);
  }
  CHECK_FALSE(worker.can_submit());
}

TEST_CASE("poll_send__never_beyond_the_window", "[worker]") {
  Worker worker(config(4));
  worker.submit(10);
  auto sent = drain(worker, 0);
  REQUIRE(sent.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(sent[i].seq == kFirst + i);
    CHECK(sent[i].index == i);
  }
  answer(worker, sent[0]);
  sent = drain(worker, 0);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].seq == kFirst + 4);
  answer(worker, {.tree = 0, .seq = kFirst + 3, .op = kFirstOp});
  CHECK(drain(worker, 0).empty());  // chunk 1 is not held: nothing beyond it plus W
}

TEST_CASE("poll_send__chunks_of_an_operation_alternate_between_trees", "[worker]") {
  Worker worker(config(8, 3));
  worker.submit(7);
  std::vector<int> tree_of(7, -1);
  for (const auto& chunk : drain(worker, 0)) tree_of[chunk.index] = static_cast<int>(chunk.tree);
  for (uint64_t i = 0; i < 7; ++i) CHECK(tree_of[i] == static_cast<int>((kFirstOp + i) % 3));
}

TEST_CASE("on_result__news_once_then_old", "[worker]") {
  Worker worker(config());
  worker.submit(2);
  const auto sent = drain(worker, 0);
  auto outcome = answer(worker, sent[0]);
  CHECK(outcome.verdict == Verdict::kNews);
  CHECK(outcome.index == 0);
  CHECK_FALSE(outcome.op_done);
  CHECK(answer(worker, sent[0]).verdict == Verdict::kOld);
  outcome = answer(worker, sent[1]);
  CHECK(outcome.op_done);
  CHECK(outcome.op == kFirstOp);
  CHECK(worker.idle());
  CHECK(worker.poll_timer() == kNever);
}

TEST_CASE("on_result__foreign", "[worker]") {
  Worker worker(config());
  worker.submit(2);
  drain(worker, 0);
  CHECK(worker.on_result(1, wire_seq(kFirst), static_cast<uint16_t>(kFirstOp), false, 0).verdict == Verdict::kForeign);
  CHECK(worker.on_result(0, wire_seq(kFirst + 2), static_cast<uint16_t>(kFirstOp), false, 0).verdict == Verdict::kForeign);
  CHECK(worker.on_result(0, wire_seq(kFirst), static_cast<uint16_t>(kFirstOp + 1), false, 0).verdict == Verdict::kForeign);
  CHECK(worker.on_result(0, wire_seq(kFirst - 1), static_cast<uint16_t>(kFirstOp), false, 0).verdict == Verdict::kOld);
}

TEST_CASE("on_result__not_before_the_first_chunk_of_its_operation", "[worker]") {
  Worker worker(config(4));
  worker.submit(2);
  worker.submit(2);
  auto sent = drain(worker, 0);
  REQUIRE(sent.size() == 4);
  CHECK(answer(worker, sent[1]).verdict == Verdict::kHeldBack);
  CHECK(answer(worker, sent[2]).verdict == Verdict::kHeldBack);
  CHECK_FALSE(answer(worker, sent[2]).fresh());  // a leaf may repeat it for ever, whatever became of the root
  CHECK(answer(worker, sent[0]).verdict == Verdict::kNews);
  // What came too early is asked for again at once.
  sent = drain(worker, 1);
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].repeat);
  CHECK(answer(worker, sent[0]).verdict == Verdict::kNews);
  CHECK(answer(worker, sent[1]).verdict == Verdict::kNews);
}

TEST_CASE("poll_send__repeats_after_the_timeout_and_backs_off", "[worker]") {
  Worker worker(config());
  worker.submit(1);
  drain(worker, 0);
  CHECK(worker.poll_timer() == 20 * kMs);
  CHECK(drain(worker, 20 * kMs - 1).empty());
  auto sent = drain(worker, 20 * kMs);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].repeat);
  CHECK(worker.resent() == 1);
  CHECK(worker.poll_timer() == 60 * kMs);
}

TEST_CASE("poll_send__a_path_slower_than_the_timeout_is_learnt", "[worker]") {
  Worker worker(config(1));
  worker.submit(20);
  TimeNs now = 0;
  for (int i = 0; i < 20; ++i) {
    const auto sent = drain(worker, now);
    REQUIRE(sent.size() == 1);
    const TimeNs back = now + 70 * kMs;  // the first timeout is 20 ms
    while (worker.poll_timer() < back) drain(worker, worker.poll_timer());
    CHECK(answer(worker, sent[0], now = back).verdict == Verdict::kNews);
  }
  CHECK(worker.resent() <= 4);
}

TEST_CASE("poll_send__what_is_in_flight_does_not_wait_for_a_timeout_that_has_come_down", "[worker]") {
  constexpr uint32_t kWindow = 64;
  Worker worker(config(kWindow));
  worker.submit(1);
  TimeNs now = 200 * kMs;  // the first round trip: slow, as on a path that loses and repairs
  const auto slow = drain(worker, 0);
  CHECK(answer(worker, slow[0], now).verdict == Verdict::kNews);

  worker.submit(kWindow);
  auto sent = drain(worker, now);
  REQUIRE(sent.size() == kWindow);
  now += kMs;
  for (size_t i = 0; i + 1 < sent.size(); ++i) answer(worker, sent[i], now);
  CHECK(worker.poll_timer() <= now + 40 * kMs);  // the last one was lost; the least timeout is 20 ms
  CHECK(drain(worker, now).empty());
  CHECK(drain(worker, worker.poll_timer()).size() == 1);
}

TEST_CASE("poll_send__a_gap_is_repeated_without_waiting", "[worker]") {
  Worker worker(config(8));
  worker.submit(8);
  const auto sent = drain(worker, 0);
  answer(worker, sent[0], 1);
  for (size_t i = 2; i < 5; ++i) answer(worker, sent[i], 1);
  const auto repeated = drain(worker, 1);
  REQUIRE(repeated.size() == 1);
  CHECK(repeated[0].seq == sent[1].seq);
  CHECK(worker.window_chunks(0) == 4);
}

TEST_CASE("on_status__a_late_rank_is_not_loss", "[worker]") {
  Worker worker(config(8));
  worker.submit(8);
  const auto sent = drain(worker, 0);
  TimeNs now = 20 * kMs;
  CHECK(drain(worker, now).size() == 8);  // nothing was heard: everything is asked for once
  const uint32_t window = worker.window_chunks(0);
  for (int i = 0; i < 20; ++i) {
    for (const auto& chunk : sent) worker.on_status(0, wire_seq(chunk.seq), now);
    now = worker.poll_timer() > now ? worker.poll_timer() : now + 200 * kMs;
    CHECK(drain(worker, now).size() <= 1);  // only the oldest
  }
  CHECK(worker.window_chunks(0) == window);
  for (const auto& chunk : sent) CHECK(answer(worker, chunk, now).verdict == Verdict::kNews);
  CHECK(worker.idle());
}

TEST_CASE("on_status__waiting_for_a_late_rank_is_no_round_trip", "[worker]") {
  Worker worker(config(4));
  worker.submit(8);
  auto sent = drain(worker, 0);
  for (const auto& chunk : sent) answer(worker, chunk, 1 * kMs);
  sent = drain(worker, 1 * kMs);
  const TimeNs before = worker.srtt(0);
  TimeNs now = worker.poll_timer();
  drain(worker, now);
  worker.on_status(0, wire_seq(sent[0].seq), now);
  now += 150 * kMs;
  for (const auto& chunk : sent) CHECK(answer(worker, chunk, now).verdict == Verdict::kNews);
  CHECK(worker.srtt(0) == before);
}

TEST_CASE("on_refused__fails_the_operation_and_goes_on_a_window_later", "[worker]") {
  Worker worker(config(4));
  worker.submit(2);
  worker.submit(1);
  auto sent = drain(worker, 0);
  REQUIRE(sent.size() == 3);
  const auto outcome = worker.on_refused(0, wire_seq(kFirst), static_cast<uint16_t>(kFirstOp), 0);
  CHECK(outcome.verdict == Verdict::kFailed);
  CHECK(outcome.op == kFirstOp);
  CHECK(outcome.op_done);
  CHECK(worker.on_refused(0, wire_seq(kFirst), static_cast<uint16_t>(kFirstOp), 0).verdict == Verdict::kOld);
  CHECK(answer(worker, sent[2]).verdict == Verdict::kOld);  // void
  sent = drain(worker, 0);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].seq == kFirst + 4);
  CHECK(sent[0].op == kFirstOp + 1);
  worker.submit(3);
  CHECK(drain(worker, 0).empty());  // one chunk only until it is answered
  CHECK(answer(worker, sent[0]).op_done);
  CHECK(drain(worker, 0).size() == 3);
}

TEST_CASE("on_refused__not_our_operation_only_moves", "[worker]") {
  Worker worker(config(4));
  worker.submit(0);  // the operation that other ranks had a chunk for
  worker.submit(2);
  drain(worker, 0);
  const auto outcome = worker.on_refused(0, wire_seq(kFirst), static_cast<uint16_t>(kFirstOp), 0);
  CHECK(outcome.verdict == Verdict::kFailed);
  CHECK_FALSE(outcome.op_done);
  auto sent = drain(worker, 0);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].seq == kFirst + 4);
  CHECK(sent[0].op == kFirstOp + 1);
  CHECK(sent[0].index == 0);
}

TEST_CASE("on_refused__what_was_done_at_once_does_not_fail", "[worker]") {
  Worker worker(config(4, 2));
  worker.submit(1);  // still runs, so the next one is not forgotten yet
  const uint32_t op = worker.submit(0);
  worker.submit(2);
  drain(worker, 0);
  // On the tree that the first operation does not use, others had a chunk of the second one.
  const auto outcome = worker.on_refused(op % 2, wire_seq(kFirst), static_cast<uint16_t>(op), 0);
  CHECK(outcome.verdict == Verdict::kFailed);
  CHECK(outcome.op == op);
  CHECK_FALSE(outcome.op_done);
}

TEST_CASE("on_refused__earlier_chunks_are_waited_for", "[worker]") {
  Worker worker(config(4));
  worker.submit(2);
  worker.submit(2);
  const auto sent = drain(worker, 0);
  CHECK(answer(worker, sent[0]).verdict == Verdict::kNews);
  CHECK(worker.on_refused(0, wire_seq(sent[2].seq), static_cast<uint16_t>(sent[2].op), 0).op_done);
  worker.submit(1);
  CHECK(drain(worker, 0).empty());
  CHECK(answer(worker, sent[1]).op_done);
  const auto next = drain(worker, 0);
  REQUIRE(next.size() == 1);
  CHECK(next[0].seq == sent[2].seq + 4);
}

TEST_CASE("on_refused__other_trees_keep_the_place_without_payload", "[worker]") {
  Worker worker(config(4, 2));
  const uint32_t op = worker.submit(2);
  const auto sent = drain(worker, 0);
  REQUIRE(sent.size() == 2);
  CHECK(worker.on_refused(sent[0].tree, wire_seq(sent[0].seq), static_cast<uint16_t>(op), 0).op_done);
  CHECK_FALSE(worker.idle());
  const auto repeated = drain(worker, 20 * kMs);
  REQUIRE(repeated.size() == 1);
  CHECK(repeated[0].tree == sent[1].tree);
  CHECK(repeated[0].void_payload);
  const auto outcome = worker.on_refused(sent[1].tree, wire_seq(sent[1].seq), static_cast<uint16_t>(op), 0);
  CHECK(outcome.verdict == Verdict::kFailed);
  CHECK_FALSE(outcome.op_done);
  CHECK(worker.idle());
}

TEST_CASE("reliable__window_stays_open_and_the_timer_only_asks", "[worker]") {
  auto c = config(8);
  c.reliable = true;
  c.window_initial = 1;
  Worker worker(c);
  worker.submit(8);
  CHECK(drain(worker, 0).size() == 8);
  CHECK(worker.poll_timer() == c.rto_max);
  CHECK(drain(worker, c.rto_max).size() == 8);
  CHECK(worker.window_chunks(0) == 8);
}
