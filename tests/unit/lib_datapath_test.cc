#include <catch2/catch.hpp>

#include "tests/unit/lib_datapath_rig.h"

using namespace gatun;

TEST_CASE("pass__sends_the_window_and_copies_results", "[lib][datapath]") {
  Rig rig;
  Request* request = rig.submit(kPayload * 6 + 5);
  CHECK(rig.datapath->pass(kNow));
  REQUIRE(rig.link.sent.size() == 4);
  const FakeLink::Packet& first = rig.link.sent[0];
  CHECK(first.header.type == PacketType::kData);
  CHECK(first.header.job == kJob);
  CHECK(first.header.child == 3);
  CHECK(first.header.elems == kPayload);
  CHECK(first.header.contributors == 1);
  CHECK(first.header.contract == fingerprint(request->contract, 0));
  CHECK(first.payload == std::vector<std::byte>(rig.send.begin(), rig.send.begin() + kPayload));
  for (int i = 0; i < 4 && !rig.datapath->poll_completed(); ++i) {
    rig.echo();
    rig.datapath->pass(kNow + i);
  }
  CHECK(request->status.ok());
  CHECK(rig.recv == rig.send);
  CHECK(rig.datapath->dropped() == 0);
}

TEST_CASE("pass__zero_elements_are_one_empty_chunk", "[lib][datapath]") {
  Rig rig;
  Request* request = rig.submit(0);
  CHECK(request->number == 0);
  CHECK(rig.submit(1)->number == 1);
  CHECK(rig.datapath->poll_completed() == nullptr);
  rig.datapath->pass(kNow);
  REQUIRE(rig.link.sent.size() == 2);
  CHECK(rig.link.sent[0].header.flags == kFlagEmpty);
  CHECK(rig.link.sent[0].header.elems == 0);
  for (int i = 0; i < 4; ++i) {
    rig.echo();
    rig.datapath->pass(kNow + i);
  }
  CHECK(rig.datapath->poll_completed() == request);
  CHECK(rig.datapath->poll_completed() != nullptr);
  CHECK(rig.datapath->poll_completed() == nullptr);
  CHECK(rig.datapath->worker().idle());
  CHECK(rig.datapath->dropped() == 0);
}

TEST_CASE("pass__a_rank_that_adds_nothing_sends_empty", "[lib][datapath]") {
  Rig rig;
  rig.submit(kPayload, Collective::kBroadcast, 1);
  rig.datapath->pass(kNow);
  REQUIRE(rig.link.sent.size() == 1);
  CHECK(rig.link.sent[0].header.flags == kFlagEmpty);
  CHECK(rig.link.sent[0].header.contributors == 0);
  CHECK(rig.link.sent[0].payload.empty());
}

TEST_CASE("on_result__refuses_what_does_not_fit", "[lib][datapath]") {
  Rig rig;
  Request* request = rig.submit(kPayload);
  rig.datapath->pass(kNow);
  const FakeLink::Packet good = rig.link.answer_to(rig.link.sent.at(0));
  std::vector<FakeLink::Packet> bad(9, good);
  bad[0].header.job ^= 1;
  bad[1].header.tree = 1;
  bad[2].header.contract ^= 1;
  bad[3].header.elem_type = Type::kI8;
  bad[4].header.reduce_op = Op::kMax;
  bad[5].header.elems = kPayload - 1;
  bad[5].payload.pop_back();
  bad[6].header.flags = kFlagEmpty;
  bad[6].payload.clear();
  bad[7].header.type = PacketType::kData;
  bad[8].header.type = PacketType::kProbe;
  for (const FakeLink::Packet& packet : bad) {
    const uint64_t before = rig.datapath->dropped();
    rig.link.push(packet.header, packet.payload);
    rig.datapath->pass(kNow);
    CHECK(rig.datapath->dropped() == before + 1);
    CHECK(rig.datapath->poll_completed() == nullptr);
  }
  rig.link.push(good.header, good.payload, true);      // damaged
  rig.link.push(good.header, good.payload, false, 7);  // from a stranger
  rig.datapath->pass(kNow);
  CHECK(rig.datapath->dropped() == bad.size() + 2);
  CHECK(rig.recv == std::vector<std::byte>(kPayload, std::byte{0xee}));
  rig.link.push(good.header, good.payload);
  rig.link.push(good.header, good.payload);  // again: of no effect
  rig.datapath->pass(kNow);
  CHECK(rig.datapath->poll_completed() == request);
  CHECK(rig.datapath->poll_completed() == nullptr);
}

TEST_CASE("on_result__keeps_only_its_segment_of_a_reduce_scatter", "[lib][datapath]") {
  Rig rig;
  rig.send.resize(2 * 100);
  rig.submit(100, Collective::kReduceScatter, 1);
  for (int i = 0; i < 4; ++i) {
    rig.datapath->pass(kNow + i);
    rig.echo();
  }
  CHECK(rig.datapath->poll_completed() != nullptr);
  CHECK(rig.recv == std::vector<std::byte>(rig.send.begin() + 100, rig.send.begin() + 200));
}

// The packet that had no room waits; its operation ends meanwhile, and its memory may be gone: it must not be sent.
TEST_CASE("send__what_had_no_room_waits_while_its_operation_lives", "[lib][datapath]") {
  Rig rig;
  rig.link.room = 1;
  rig.submit(kPayload * 3);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.size() == 1);
  CHECK(rig.datapath->poll_timer(kNow) <= kNow + kMs);
  rig.link.room = 1;
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.size() == 2);
  rig.datapath->fail_all({Code::kAborted, "end"});
  rig.link.room = 100;
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.size() == 2);
}

TEST_CASE("send__shared_memory_places_follow_the_chunk_number", "[lib][datapath]") {
  Rig rig({}, std::make_unique<FakeLink>(true, 4 * kPayload));
  rig.submit(kPayload * 6);
  rig.datapath->pass(kNow);
  const std::span<std::byte> arena = rig.link.arena(0);
  for (size_t i = 0; i < 4; ++i)
    CHECK(std::equal(arena.begin() + i * kPayload, arena.begin() + (i + 1) * kPayload, rig.send.begin() + i * kPayload));
  const FakeLink::Packet answer = rig.link.answer_to(rig.link.sent[0]);
  rig.link.push(answer.header, answer.payload);
  rig.datapath->pass(kNow);
  CHECK(std::equal(arena.begin(), arena.begin() + kPayload, rig.send.begin() + 4 * kPayload));
}

TEST_CASE("on_refused__gives_the_request_out_once", "[lib][datapath]") {
  Rig rig;
  Request* request = rig.submit(kPayload);
  Request* next = rig.submit(kPayload);
  rig.datapath->pass(kNow);
  FakeLink::Packet refusal = rig.link.answer_to(rig.link.sent.at(0));
  refusal.header.flags = kFlagRefused;
  rig.link.sent.clear();
  rig.link.push(refusal.header, {});
  rig.link.push(refusal.header, {});
  rig.datapath->pass(kNow);
  Datapath::Refusal refused;
  REQUIRE(rig.datapath->poll_refused(&refused));
  CHECK(refused.number == 0);
  CHECK(refused.contract == request->contract);
  CHECK(refused.request == request);
  CHECK_FALSE(rig.datapath->poll_refused(&refused));
  CHECK(rig.recv == std::vector<std::byte>(kPayload, std::byte{0xee}));

  // The next operation goes on behind the void chunks.
  CHECK(rig.datapath->poll_completed() == nullptr);
  REQUIRE(rig.link.sent.size() == 1);
  CHECK(rig.link.sent[0].header.seq == refusal.header.seq + 4);
  rig.echo();
  rig.datapath->pass(kNow + 1);
  CHECK(rig.datapath->poll_completed() == next);
}

TEST_CASE("stall__names_what_the_switch_said", "[lib][datapath]") {
  Rig rig;
  Request* request = rig.submit(kPayload * 2);
  rig.datapath->pass(kNow);
  Datapath::Stall stall = rig.datapath->stall(*request);
  CHECK(stall.found);
  CHECK(stall.missing == 0);
  CHECK(stall.heard_at == 0);
  Header status = rig.link.sent[0].header;
  status.type = PacketType::kStatus;
  status.child = 0;
  status.flags = 0;
  rig.link.push(status, {std::byte{0}, std::byte{2}, std::byte{0}, std::byte{1}, std::byte{0}, std::byte{5}});
  rig.datapath->pass(kNow + 5);
  stall = rig.datapath->stall(*request);
  CHECK(stall.missing == (uint64_t{1} << 1 | uint64_t{1} << 5));
  CHECK(stall.index == 0);
  CHECK(stall.heard_at == kNow + 5);
  rig.link.push(status, {std::byte{0}, std::byte{9}});  // says more than it holds
  rig.datapath->pass(kNow + 6);
  CHECK(rig.datapath->dropped() == 1);
}

TEST_CASE("unanswered_since__a_repeated_answer_is_no_sign_of_life", "[lib][datapath]") {
  Rig rig;
  rig.submit(kPayload * 2);
  CHECK(rig.datapath->unanswered_since() == kNever);
  rig.datapath->pass(kNow);
  CHECK(rig.datapath->unanswered_since() == kNow);
  REQUIRE(rig.link.sent.size() == 2);
  // The first chunk's answer got lost with the root; the leaf still has that of the second, which may not come before it.
  const FakeLink::Packet second = rig.link.answer_to(rig.link.sent[1]);
  rig.link.push(second.header, second.payload);
  rig.datapath->pass(kNow + 1);
  const TimeNs again = rig.datapath->worker().poll_timer();
  rig.datapath->pass(again);
  CHECK(rig.datapath->unanswered_since() == again);
  rig.link.push(second.header, second.payload);
  rig.datapath->pass(again + 1);
  CHECK(rig.datapath->unanswered_since() == again);

  const FakeLink::Packet first = rig.link.answer_to(rig.link.sent[0]);
  rig.link.push(first.header, first.payload);
  rig.datapath->pass(again + 2);
  CHECK(rig.datapath->unanswered_since() > again);
}

TEST_CASE("fail_all__ends_every_request_with_the_cause", "[lib][datapath]") {
  Rig rig;
  Request* first = rig.submit(kPayload);
  Request* second = rig.submit(kPayload);
  rig.datapath->fail_all({Code::kRankLost, "rank 1 is lost"});
  CHECK(rig.datapath->poll_completed() == first);
  CHECK(rig.datapath->poll_completed() == second);
  CHECK(second->status.code() == Code::kRankLost);
  CHECK_FALSE(rig.datapath->pass(kNow));
}
