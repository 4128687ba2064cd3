#include "protocols/membership.h"

#include <algorithm>

#include "tests/unit/membership_fixture.h"

namespace gatun {
namespace {

using namespace control;
using Fixture = MembershipFixture;

}  // namespace

TEST_CASE("on_join__any_order_admits_once_all_are_here", "[membership]") {
  std::vector<uint32_t> order = {0, 1, 2, 3};
  do {
    Fixture f;
    for (uint32_t rank : order) {
      CHECK(f.actions.empty());
      f.open(rank);
      f.say(rank, Fixture::join(rank, 4));
    }
    REQUIRE(f.actions.size() == 1);
    const JobPlan& plan = f.actions[0].plan;
    CHECK(plan.name == "train");
    CHECK(plan.ranks == 4);
    CHECK(plan.payload_bytes == 1472);
    CHECK(plan.shm == std::vector<bool>(4, false));
    uint32_t handle = f.admit();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      auto* admit = f.last<Admit>(rank);
      REQUIRE(admit);
      CHECK(admit->job == handle);
      CHECK(admit->token == plan.token);
      CHECK(admit->first_seq == 100);
      CHECK(admit->transport == TransportChoice::kUdp);
      CHECK(admit->shm_socket.empty());
      REQUIRE(admit->trees.size() == 1);
      CHECK(admit->trees[0].child == rank);
      CHECK(admit->trees[0].port == 7117);
    }
    for (uint32_t rank : order) f.say(rank, Ready{});
    for (uint32_t rank : order) CHECK(f.last<Start>(rank));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("on_join__verbs_where_the_switch_has_it", "[membership]") {
  auto bare = Fixture::base();
  bare.facts.why_no_verbs = "no device";
  Fixture without(bare);
  Join join = Fixture::join(0, 1);
  join.transport = TransportChoice::kVerbs;
  without.open(0);
  without.say(0, join);
  REQUIRE(without.last<Refused>(0));
  CHECK(without.last<Refused>(0)->text.find("the switch has no RDMA: no device") != std::string::npos);

  auto config = Fixture::base();
  config.facts.verbs = true;
  Fixture f(config);
  join.host_identity = "here";  // chosen also where memory is shared
  f.open(0);
  f.say(0, join);
  REQUIRE(f.actions.size() == 1);
  CHECK(f.actions[0].plan.verbs == std::vector<bool>{true});
  CHECK(f.actions[0].plan.shm == std::vector<bool>{false});
  CHECK(f.actions[0].plan.payload_bytes == 65536);  // no packets that must fit a path
  f.admit();
  CHECK(f.last<Admit>(0)->transport == TransportChoice::kVerbs);
}

TEST_CASE("on_attached__answers_the_rank_or_ends_its_job", "[membership]") {
  for (const bool good : {true, false}) {
    auto config = Fixture::base();
    config.facts.verbs = true;
    Fixture f(config);
    for (uint32_t rank : {0u, 1u}) {
      Join join = Fixture::join(rank, 2);
      join.transport = TransportChoice::kVerbs;
      f.open(rank);
      f.say(rank, join);
    }
    const uint32_t handle = f.admit();
    f.actions.clear();
    f.say(1, control::Attach{0, "ours"});
    REQUIRE(f.actions.size() == 1);
    CHECK(f.actions[0].kind == Membership::Action::kAttach);
    CHECK(f.actions[0].job == handle);
    CHECK(f.actions[0].rank == 1);
    CHECK(f.actions[0].attach.card == "ours");
    const Result<std::string> card = good ? Result<std::string>(std::string("theirs")) : Status(Code::kRefused, "no room");
    f.machine.on_attached(handle, 1, 0, card, f.now);
    f.pump();
    if (good) {
      REQUIRE(f.last<control::Attach>(1));
      CHECK(f.last<control::Attach>(1)->card == "theirs");
      f.say(0, Ready{});
      f.say(1, Ready{});
      f.actions.clear();
      f.say(1, control::Attach{0, "again"});  // too late: nothing comes of it
      CHECK(f.actions.empty());
    } else {
      REQUIRE(f.last<Refused>(1));
      CHECK(f.last<Refused>(1)->text == "no room");
      CHECK(f.last<Lost>(0));
    }
    f.machine.on_attached(handle + 1, 1, 0, card, f.now);  // a job that is gone
  }
}

TEST_CASE("on_join__shm_for_ranks_that_share_memory", "[membership]") {
  Fixture f;
  Join local = Fixture::join(0, 2);
  local.host_identity = "here";
  f.open(0);
  f.say(0, local);
  f.open(1);
  f.say(1, Fixture::join(1, 2));
  CHECK(f.actions.at(0).plan.shm == std::vector<bool>{true, false});
  f.admit();
  CHECK(f.last<Admit>(0)->transport == TransportChoice::kShm);
  CHECK(f.last<Admit>(0)->shm_socket == "socket");
  CHECK(f.last<Admit>(1)->transport == TransportChoice::kUdp);
}

TEST_CASE("on_join__one_rank", "[membership]") {
  Fixture f;
  f.run(1);
  f.say(0, Leave{});
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  CHECK(f.machine.jobs() == 0);
}

TEST_CASE("on_join__refused_by_itself", "[membership]") {
  Fixture f;
  ConnId conn = 10;
  auto refusal = [&](Join join) {
    f.open(++conn);
    f.say(conn, join);
    CHECK(f.closed.count(conn));
    return f.refusal(conn);
  };
  CHECK(refusal(Fixture::join(4, 4)) == "rank 4 is out of range: a job of 4 ranks has ranks 0 to 3");
  CHECK(refusal(Fixture::join(64, 65)) == "rank 64 of 65 is refused: this switch takes at most 64 ranks per job");
  CHECK(refusal(Fixture::join(0, 0)) == "a job of 0 ranks cannot run; the size must be at least 1");
  CHECK(refusal(Fixture::join(0, 1, "")) == "the job name is empty; set a job name");
  Join join = Fixture::join(0, 2);
  join.trees = 17;
  CHECK(refusal(join) == "setting trees is 17; this switch takes 1 to 16");
  join = Fixture::join(0, 2);
  join.window = 3;
  CHECK(refusal(join) == "setting window is 3; it must be a power of two from 2 to 4096");
  join = Fixture::join(0, 2);
  join.payload_bytes = 100;
  CHECK(refusal(join) == "setting payload is 100; it must be a multiple of 64 up to 1048576");
  join = Fixture::join(0, 2);
  join.transport = TransportChoice::kShm;
  CHECK(refusal(join) == "setting transport is shm, but host node0 shares no memory with the switch; use auto or udp");
  CHECK(f.machine.jobs() == 0);
  CHECK(f.machine.refusals() == 8);
  CHECK(f.machine.connections() == 0);
}

TEST_CASE("on_join__64_ranks_are_admitted", "[membership]") {
  Fixture f;
  f.run(64);
  CHECK(f.machine.jobs() == 1);
}

TEST_CASE("on_join__duplicate_rank_names_its_holder_and_harms_nobody", "[membership]") {
  Fixture f;
  f.open(0);
  f.say(0, Fixture::join(1, 2));
  f.open(1);
  Join twin = Fixture::join(1, 2);
  twin.host = "elsewhere";
  f.say(1, twin);
  CHECK(f.refusal(1) ==
        "rank 1 of job 'train' is already taken by rank 1 (node1, pid 1001); give each process its own rank, "
        "or set another job name");
  CHECK(f.said(0) == 0);
  f.open(2);
  f.say(2, Fixture::join(0, 2));
  CHECK(f.actions.size() == 1);
}

TEST_CASE("on_join__contradicting_sizes_end_the_forming_job_for_all", "[membership]") {
  Fixture f;
  f.open(0);
  f.say(0, Fixture::join(0, 4));
  f.open(1);
  f.say(1, Fixture::join(5, 8));
  const std::string text =
      "job 'train': rank 5 (node5, pid 1005) says 8 ranks, rank 0 (node0, pid 1000) says 4; start all ranks "
      "with the same size";
  CHECK(f.refusal(0) == text);
  CHECK(f.refusal(1) == text);
  CHECK(f.machine.jobs() == 0);
  CHECK(f.closed == std::set<ConnId>{0, 1});
}

TEST_CASE("on_join__contradicting_settings_name_the_setting_and_both_values", "[membership]") {
  auto text = [](auto change) {
    Fixture f;
    f.open(0);
    f.say(0, Fixture::join(0, 2));
    Join other = Fixture::join(1, 2);
    change(other);
    f.open(1);
    f.say(1, other);
    CHECK(f.refusal(0) == f.refusal(1));
    CHECK(f.machine.jobs() == 0);
    return f.refusal(1);
  };
  CHECK(text([](Join& j) { j.window = 32; }) ==
        "job 'train': setting window differs: rank 0 (node0, pid 1000) has auto, rank 1 "
        "(node1, pid 1001) has 32; give all ranks the same");
  CHECK(text([](Join& j) { j.trees = 2; }).find("setting trees differs: rank 0 (node0, pid 1000) has 1, rank 1") !=
        std::string::npos);
  CHECK(text([](Join& j) { j.payload_bytes = 64; }).find("setting payload differs") != std::string::npos);
  CHECK(text([](Join& j) { j.transport = TransportChoice::kUdp; }).find("setting transport differs") != std::string::npos);
}

TEST_CASE("on_join__name_in_use", "[membership]") {
  Fixture f;
  f.run(2);
  f.open(5);
  f.say(5, Fixture::join(0, 2));
  CHECK(f.refusal(5) ==
        "job name 'train' is in use by a running job of 2 ranks, among them rank 0 (node0, pid 1000); wait for its "
        "end or set another job name");
}

// All ranks leave and come again under the same name, and the first is back before the last has left.
TEST_CASE("on_join__name_of_a_job_that_a_rank_has_left", "[membership]") {
  Fixture f;
  const uint32_t before = f.run(2);
  f.say(0, Leave{});
  f.open(2);
  f.say(2, Fixture::join(0, 2));
  CHECK(f.refusal(2) == "not refused");
  f.say(1, Report{3, {}});  // still a member of the old job
  CHECK(f.machine.jobs() == 2);
  REQUIRE(f.machine.job_states().size() == 1);
  CHECK(f.machine.job_states()[0].job != before);
  f.say(1, Leave{});
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  CHECK(f.machine.jobs() == 1);
  f.open(3);
  f.say(3, Fixture::join(1, 2));
  const uint32_t after = f.admit();
  CHECK(after != before);
  f.say(2, Ready{});
  f.say(3, Ready{});
  CHECK(f.last<Start>(2));
  f.open(4);
  f.say(4, Fixture::join(0, 2));
  CHECK(f.refusal(4).find("job name 'train' is in use") != std::string::npos);
}

TEST_CASE("on_join__too_many_jobs", "[membership]") {
  Membership::Config config = Fixture::base();
  config.connections_max = kJobsMax + 1;
  Fixture f(config);
  for (ConnId conn = 0; conn <= kJobsMax; ++conn) {
    f.open(conn);
    f.say(conn, Fixture::join(0, 2, "job" + std::to_string(conn)));
  }
  CHECK(f.refusal(kJobsMax - 1) == "not refused");
  CHECK(f.refusal(kJobsMax) == "the switch already has 1024 jobs that run or wait for their ranks");
}

TEST_CASE("on_open__too_many_connections", "[membership]") {
  Membership::Config config = Fixture::base();
  config.connections_max = 2;
  Fixture f(config);
  for (ConnId conn = 0; conn < 3; ++conn) f.open(conn);
  CHECK(f.refusal(1) == "not refused");
  CHECK(f.refusal(2) == "the switch already has its maximum of 2 connections");
}

TEST_CASE("on_close__while_joining_the_place_is_free_again", "[membership]") {
  Fixture f;
  f.open(0);
  f.say(0, Fixture::join(0, 2));
  f.open(1);
  f.say(1, Fixture::join(1, 2));
  f.close(1);
  CHECK(f.actions.size() == 2);  // it was complete for a moment: admitted, then removed
  Fixture g;
  g.open(0);
  g.say(0, Fixture::join(0, 3));
  g.open(1);
  g.say(1, Fixture::join(1, 3));
  g.close(1);
  CHECK(g.said(0) == 0);
  g.open(2);
  g.say(2, Fixture::join(1, 3));
  g.open(3);
  g.say(3, Fixture::join(2, 3));
  CHECK(g.actions.size() == 1);
  Fixture h;
  h.open(0);
  h.say(0, Fixture::join(0, 3));
  h.close(0);
  CHECK(h.machine.jobs() == 0);
  CHECK(h.actions.empty());
}

TEST_CASE("on_admitted__refusal_goes_to_all", "[membership]") {
  Fixture f;
  f.join_all(2);
  f.machine.on_admitted(f.actions[0].job, Admission{Status(Code::kRefused, "needs 3M, 1M are free"), 0, 0, {}, {}}, f.now);
  f.pump();
  CHECK(f.refusal(0) == "job 'train' is not admitted: needs 3M, 1M are free");
  CHECK(f.refusal(1) == f.refusal(0));
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  CHECK(f.machine.jobs() == 0);
}

TEST_CASE("on_admitted__of_a_job_that_is_gone_is_ignored", "[membership]") {
  Fixture f;
  f.join_all(2);
  uint32_t handle = f.actions[0].job;
  f.close(0);
  CHECK(f.last<Lost>(1));
  f.machine.on_admitted(handle, Admission{{}, 16, 1408, {{7117, 0}}, ""}, f.now);
  f.machine.on_admitted(12345, Admission{}, f.now);
  f.pump();
  CHECK(f.said(1) == 1);
}

TEST_CASE("on_message__abort_while_proving_tells_all_why", "[membership]") {
  Fixture f;
  f.join_all(3);
  f.admit();
  f.say(2, Abort{0, "no answer on the data path from node2 to 10.0.0.9:7117"});
  REQUIRE(f.last<Abort>(0));
  CHECK(f.last<Abort>(0)->rank == 2);
  CHECK(f.last<Abort>(1)->text ==
        "rank 2 (node2, pid 1002) aborted the job: no answer on the data path from node2 to 10.0.0.9:7117");
  CHECK(f.machine.jobs() == 0);
}

TEST_CASE("on_message__abort_of_a_running_job", "[membership]") {
  Fixture f;
  f.run(3);
  f.say(1, Abort{});
  CHECK(f.last<Abort>(0)->text == "rank 1 (node1, pid 1001) aborted the job: no reason given");
  CHECK(f.last<Start>(1));  // itself it knows
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  f.at(kBegin + 5 * kSecond);
  CHECK(f.closed == std::set<ConnId>{0, 1, 2});
}

TEST_CASE("on_close__of_a_running_rank_tells_the_others_and_frees_the_name", "[membership]") {
  Fixture f;
  uint32_t handle = f.run(4);
  f.close(2, "Connection reset by peer");
  for (ConnId conn : {0, 1, 3}) {
    REQUIRE(f.last<Lost>(conn));
    CHECK(f.last<Lost>(conn)->rank == 2);
    CHECK(f.last<Lost>(conn)->text ==
          "rank 2 (node2, pid 1002) is lost: its connection closed without leave (Connection reset by peer)");
  }
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  CHECK(f.actions.back().job == handle);
  uint32_t next = f.run(4, 20);
  CHECK(next != handle);
  CHECK((next & 1023) != (handle & 1023));
}

TEST_CASE("on_message__leave_tells_the_others_and_the_last_ends_the_job", "[membership]") {
  Fixture f;
  f.run(2);
  f.say(0, Leave{});
  f.close(0);
  REQUIRE(f.last<Left>(1));
  CHECK(f.last<Left>(1)->rank == 0);
  CHECK(f.last<Left>(1)->text == "rank 0 (node0, pid 1000) left the job; operations that need it cannot complete");
  CHECK(f.machine.jobs() == 1);
  f.say(1, Leave{});
  CHECK(f.machine.jobs() == 0);
  CHECK(f.actions.back().kind == Membership::Action::kRemove);
  f.close(1);
  CHECK(f.machine.connections() == 0);
}

TEST_CASE("on_message__leave_before_the_start_ends_the_job", "[membership]") {
  Fixture f;
  f.join_all(2);
  f.admit();
  f.say(0, Leave{});
  CHECK(f.last<Lost>(1)->text == "rank 0 (node0, pid 1000) is lost: it left before the job had started");
}

TEST_CASE("on_message__malformed_kinds", "[membership]") {
  Fixture f;
  f.open(0);
  f.say(0, Ready{});
  CHECK(f.refusal(0) == "sent Ready before it had joined");
  f.run(2, 10);
  f.say(10, Start{});
  CHECK(f.refusal(10) == "the peer at 10.0.0.1:10 sent Start, which only a switch sends");
  CHECK(f.last<Lost>(11)->text == "rank 0 (node0, pid 1000) is lost: it sent Start, which only a switch sends");
  f.run(2, 20);
  f.say(20, Fixture::join(0, 2));
  CHECK(f.refusal(20) == "the peer at 10.0.0.1:20 sent Join twice");
  f.machine.on_message(99, Ready{}, f.now);  // never opened
  f.machine.on_close(99, "", f.now);
  f.pump();
}

TEST_CASE("on_malformed__another_version", "[membership]") {
  Fixture f;
  f.open(0);
  f.machine.on_malformed(0, "speaks control protocol 3, this is 1", f.now);
  f.pump();
  CHECK(f.refusal(0) == "the peer at 10.0.0.1:0 speaks control protocol 3, this is 1");
  CHECK(f.closed.count(0));
}

TEST_CASE("on_stop__tells_all_and_closes_all", "[membership]") {
  Fixture f;
  f.run(2);
  f.open(5);
  f.say(5, Fixture::join(0, 2, "other"));
  f.open(6);
  f.machine.on_stop("the switch at here stops", f.now);
  f.pump();
  for (ConnId conn : {0, 1, 5}) CHECK(f.last<Closing>(conn)->text == "the switch at here stops");
  CHECK(f.closed == std::set<ConnId>{0, 1, 5, 6});
  CHECK(f.machine.connections() == 0);
  CHECK(f.machine.jobs() == 0);
}

TEST_CASE("handles__differ_and_rest", "[membership]") {
  Membership::Config config = Fixture::base();
  config.random = [] { return uint64_t{42} << 42; };  // the worst generator
  Fixture f(config);
  std::set<uint32_t> handles;
  uint32_t last = 0;
  for (int i = 0; i < 5000; ++i) {
    f.open(1);
    f.say(1, Fixture::join(0, 1));
    uint32_t handle = f.actions.back().job;
    CHECK(handle != last);
    CHECK(handle >> 10 != 0);
    handles.insert(handle);
    last = handle;
    f.close(1);
  }
  CHECK(handles.size() == 5000);
  CHECK(f.machine.jobs() == 0);
  CHECK(f.machine.connections() == 0);
}

TEST_CASE("membership__random_events_never_break_it", "[membership]") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 generator(seed);
    auto number = [&](uint32_t below) { return static_cast<uint32_t>(generator() % below); };
    Fixture f;
    std::set<ConnId> open;
    for (int step = 0; step < 300; ++step) {
      ConnId conn = number(12);
      if (f.closed.count(conn)) open.erase(conn), f.closed.erase(conn);
      const Message messages[] = {Fixture::join(number(3), 2 + number(2), "job" + std::to_string(number(2))),
                                  Ready{},
                                  Ready{},
                                  Leave{},
                                  Report{number(4), {.count = number(2)}},
                                  Stalled{number(4), {uint16_t(number(5))}, ""},
                                  KeepAlive{uint8_t(number(2)), number(5), 0},
                                  Abort{9, "x"},
                                  Start{}};
      switch (generator() % 8) {
        case 0:
          if (open.insert(conn).second) f.open(conn);
          break;
        case 1:
          if (generator() % 4 == 0 && open.erase(conn)) f.close(conn);
          break;
        case 2: f.at(f.now + static_cast<TimeNs>(generator() % 3000) * kMs); break;
        default:
          if (open.count(conn)) f.say(conn, messages[generator() % (generator() % 3 ? 3 : std::size(messages))]);
      }
      if (!f.actions.empty() && f.actions.back().kind == Membership::Action::kAdmit && number(2)) f.admit();
      CHECK(f.machine.jobs() <= 12);  // 4, and those that a rank has left
    }
    f.machine.on_stop("end", f.now);
    f.pump();
    CHECK(f.machine.jobs() == 0);
    CHECK(f.machine.connections() == 0);
  }
}

}  // namespace gatun
