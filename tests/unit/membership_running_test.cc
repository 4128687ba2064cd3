#include "protocols/membership.h"
#include "tests/unit/membership_fixture.h"

namespace gatun {
namespace {

using namespace control;
using Fixture = MembershipFixture;

}  // namespace

TEST_CASE("on_timer__join_deadline_says_who_is_here_and_who_is_not", "[membership]") {
  Fixture f;
  for (uint32_t rank : {0, 1}) {
    f.open(rank);
    f.say(rank, Fixture::join(rank, 4));
  }
  f.open(9);
  f.say(9, Fixture::join(1, 4));
  f.at(kBegin + 10 * kSecond - 1);
  CHECK(f.refusal(0) == "not refused");
  f.at(kBegin + 10 * kSecond);
  const std::string text = f.refusal(0);
  CHECK(
      text.find(
          "job 'train' is not complete after 10 s: waiting for ranks 2, 3 of 4; joined: 0 (node0, pid 1000), 1 (node1, pid "
          "1001); refused: node1: rank 1 of job 'train' is already taken") == 0);
  CHECK(f.refusal(1) == text);
  CHECK(f.machine.jobs() == 0);
  CHECK(f.actions.empty());
}

TEST_CASE("on_timer__a_connection_that_does_not_join_is_closed", "[membership]") {
  Fixture f;
  f.open(0);
  f.at(kBegin + 10 * kSecond);
  CHECK(f.refusal(0) == "the peer at 10.0.0.1:0 did not join within 10 s");
  CHECK(f.closed.count(0));
}

TEST_CASE("on_timer__joined_connections_stay_open_however_long", "[membership]") {
  Fixture f;
  f.open(0);
  Join join = Fixture::join(0, 2);
  join.join_timeout_ms = 0;  // as long as the switch allows
  f.say(0, join);
  f.at(kBegin + 3599 * kSecond);
  CHECK(f.machine.jobs() == 1);
  f.at(kBegin + 3600 * kSecond);
  CHECK(f.machine.jobs() == 0);
}

TEST_CASE("on_timer__ready_deadline_names_the_rank_without_proof", "[membership]") {
  Fixture f;
  f.join_all(3);
  f.admit();
  f.say(0, Ready{});
  f.say(2, Ready{});
  f.at(kBegin + 30 * kSecond);
  CHECK(f.refusal(0) == "job 'train' cannot start: no proof of the data path within 30 s from rank 1 (node1, pid 1001)");
  CHECK(f.refusal(1) == f.refusal(0));
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
}

TEST_CASE("on_timer__silent_rank_is_lost", "[membership]") {
  Fixture f;
  f.run(2);
  for (int second = 1; second < 3; ++second) {
    f.at(kBegin + second * kSecond);
    f.say(0, KeepAlive{});
    CHECK(f.last<KeepAlive>(1));  // the controller speaks too
  }
  f.at(kBegin + 3 * kSecond);
  CHECK(f.last<Lost>(0)->text == "rank 1 (node1, pid 1001) is lost: nothing was heard from it for 3 s");
  CHECK(f.refusal(1) == "nothing was heard from this rank for 3 s");
  CHECK(f.closed.count(1));
}

TEST_CASE("on_message__keepalive_with_a_question_is_answered", "[membership]") {
  Fixture f;
  f.run(1);
  f.say(0, KeepAlive{.ask = 1});
  REQUIRE(f.last<KeepAlive>(0));
  CHECK(f.last<KeepAlive>(0)->ask == 0);
}

TEST_CASE("on_report__one_text_for_all", "[membership]") {
  Fixture f;
  f.run(8);
  Contract odd{.count = 409600}, even{.count = 409598};
  for (uint32_t rank = 0; rank < 8; ++rank) f.say(rank, Report{5, rank == 0 ? odd : even});
  for (uint32_t rank = 0; rank < 8; ++rank) {
    REQUIRE(f.last<Mismatch>(rank));
    CHECK(f.last<Mismatch>(rank)->op == 5);
    CHECK(
        f.last<Mismatch>(rank)->text ==
        "operation 5 differs between ranks: rank 0: allreduce of 409600 f32, sum; ranks 1-7: allreduce of 409598 f32, sum");
  }
  CHECK(f.machine.jobs() == 1);
}

TEST_CASE("on_report__waits_a_bounded_time_and_says_who_is_missing", "[membership]") {
  Fixture f;
  f.run(4);
  f.say(1, Report{7, {.type = Type::kF16, .count = 3}});
  f.say(0, Report{7, {.type = Type::kBF16, .count = 3}});
  CHECK(f.last<Start>(0));
  f.at(kBegin + 1 * kSecond);
  CHECK(f.last<KeepAlive>(3));  // which was due as well; who has not reported is told when it does
  CHECK(f.said(3) == f.said(0) - 1);
  const std::string text =
      "operation 7 differs between ranks: rank 0: allreduce of 3 bf16, sum; rank 1: allreduce of 3 f16, sum; no "
      "report from ranks 2, 3 within 1 s";
  CHECK(f.inbox[0].at(f.said(0) - 2).index() == Message(Mismatch{}).index());
  CHECK(std::get<Mismatch>(f.inbox[0].at(f.said(0) - 2)).text == text);
  f.say(3, Report{7, {}});  // late: the same text, at once
  CHECK(f.last<Mismatch>(3)->text == text);
}

TEST_CASE("on_report__one_contract_and_a_rank_that_is_silent", "[membership]") {
  Fixture f;
  f.run(3);
  f.say(1, Report{1, {.count = 3}});
  f.say(2, Report{1, {.count = 3}});
  f.at(kBegin + 1 * kSecond);
  CHECK(std::get<Mismatch>(f.inbox[1].at(f.said(1) - 2)).text ==
        "operation 1 differs between ranks: ranks 1, 2: allreduce of 3 f32, sum; no report from rank 0 within 1 s (a "
        "call of zero elements is over at once and may not report)");
}

TEST_CASE("on_report__equal_reports", "[membership]") {
  Fixture f;
  f.run(2);
  f.say(0, Report{1, {.count = 3}});
  f.say(1, Report{1, {.count = 3}});
  CHECK(f.last<Mismatch>(0)->text ==
        "operation 1 was refused, although all ranks report the same: ranks 0, 1: allreduce of 3 f32, sum");
}

TEST_CASE("on_report__a_flood_of_operations_stays_bounded", "[membership]") {
  Fixture f;
  f.run(2);
  for (uint32_t op = 0; op < 1000; ++op) f.say(0, Report{op, {}});
  f.at(kBegin + kSecond - 1);
  CHECK(f.said(0) < 1000);
  CHECK(f.last<Start>(1));
}

TEST_CASE("on_stalled__asks_and_answers_with_both_sides_progress", "[membership]") {
  Fixture f;
  f.run(3);
  f.say(0, KeepAlive{.started = 13, .finished = 12});
  f.say(0, Stalled{12, {1, 2}, ""});
  REQUIRE(f.last<KeepAlive>(1));
  CHECK(f.last<KeepAlive>(1)->ask == 1);
  f.say(1, KeepAlive{.started = 12, .finished = 12});
  CHECK(f.last<Start>(0));
  f.say(2, KeepAlive{.started = 13, .finished = 12});
  REQUIRE(f.last<Stalled>(0));
  CHECK(f.last<Stalled>(0)->op == 12);
  CHECK(f.last<Stalled>(0)->text ==
        "operation 12 of rank 0 waits for rank 1 (node1, pid 1001), which has started only 12 operations, against 13 of "
        "rank 0; rank "
        "2 (node2, pid 1002), which has started it");
  REQUIRE(f.machine.job_states().size() == 1);
  CHECK(f.machine.job_states()[0].running);
  CHECK(f.machine.job_states()[0].joined == 3);
  CHECK(f.machine.job_states()[0].stalls == 1);
  CHECK(f.machine.job_states()[0].failovers == 0);
}

TEST_CASE("on_stalled__a_stopped_rank_does_not_answer", "[membership]") {
  Fixture f;
  f.run(2);
  f.now = kBegin + 900 * kMs;
  f.say(0, Stalled{0, {}, ""});
  f.at(f.now + 200 * kMs);
  auto* stalled = std::get_if<Stalled>(&f.inbox[0].at(f.said(0) - 2));  // then a keep-alive was due
  REQUIRE(stalled);
  CHECK(stalled->text ==
        "operation 0 of rank 0 waits for rank 1 (node1, pid 1001), which does not answer and was last heard 1100 ms ago");
}

TEST_CASE("say_waiting__tells_at_once_and_again_for_whom_the_job_waits", "[membership]") {
  Fixture f;
  f.open(0);
  f.say(0, Fixture::join(0, 3));
  CHECK(f.waits[0] == std::vector<std::string>{"ranks 1, 2 of 3"});
  f.open(1);
  f.say(1, Fixture::join(1, 3));
  CHECK(f.waits[0].back() == "rank 2 of 3");
  CHECK(f.waits[1] == std::vector<std::string>{"rank 2 of 3"});
  f.close(1);
  CHECK(f.waits[0].back() == "ranks 1, 2 of 3");
  const size_t words = f.waits[0].size();
  f.at(f.now + kWaitingEvery);
  CHECK(f.waits[0].size() == words + 1);
  f.open(2);
  f.say(2, Fixture::join(2, 3));
  f.open(1);
  f.say(1, Fixture::join(1, 3));
  f.admit();
  f.say(0, Ready{});
  f.at(f.now + kWaitingEvery);
  CHECK(f.waits[0].back() == "the data path of ranks 1, 2 of 3");
  f.say(1, Ready{});
  f.say(2, Ready{});
  f.waits.clear();
  f.at(f.now + kWaitingEvery);
  CHECK(f.waits.empty());  // it runs
}

TEST_CASE("on_stalled__a_rank_that_left", "[membership]") {
  Fixture f;
  f.run(2);
  f.say(1, KeepAlive{.started = 4, .finished = 4});
  f.say(1, Leave{});
  f.say(0, Stalled{4, {1, 9, 0}, ""});
  CHECK(f.last<Stalled>(0)->text ==
        "operation 4 of rank 0 waits for rank 1 (node1, pid 1001), which has left the job after 4 operations");
}

}  // namespace gatun
