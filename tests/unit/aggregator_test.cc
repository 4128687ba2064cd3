#include "protocols/aggregator.h"

#include <catch2/catch.hpp>

using namespace gatun;
using Action = Aggregator::Action;
using Drop = Aggregator::Drop;

namespace {

Header data(uint32_t seq, uint8_t child, uint32_t contract = 7, uint16_t op = 1) {
  Header h;
  h.seq = seq;
  h.child = child;
  h.contract = contract;
  h.op = op;
  h.elems = 4;
  h.contributors = 1;
  h.elem_type = Type::kF32;
  return h;
}

Header result(uint32_t seq, uint32_t contract = 7, uint8_t flags = 0) {
  Header h = data(seq, 0, contract);
  h.type = PacketType::kResult;
  h.flags = flags;
  h.contributors = 9;
  return h;
}

constexpr uint32_t kFirst = 0xfffffffc;  // four chunks before the wrap

}  // namespace

TEST_CASE("on_contribution__keeps_completes_repeats", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  auto d = root.on_contribution(data(kFirst, 0), false);
  CHECK(d.action == Action::kKeep);
  CHECK(d.bank == (kFirst & 7));
  CHECK(root.missing(d.bank) == 0b10);
  CHECK(root.open_banks() == 1);
  CHECK(root.on_contribution(data(kFirst, 0), false).action == Action::kStatus);
  CHECK(root.on_contribution(data(kFirst, 1), false).action == Action::kComplete);
  CHECK(root.on_contribution(data(kFirst, 1), false).action == Action::kRepeat);
  CHECK(root.on_contribution(data(kFirst, 0), false).action == Action::kRepeat);
  CHECK(root.bank(d.bank).contributors == 2);
  CHECK(root.make_header(d.bank).type == PacketType::kResult);
  CHECK(root.open_banks() == 0);
}

TEST_CASE("on_contribution__old_lap_is_stale_across_the_wrap", "[aggregator]") {
  Aggregator root({.window = 4, .children = 1});
  for (uint32_t seq = kFirst; seq != kFirst + 20; ++seq) {
    CHECK(root.on_contribution(data(seq, 0), false).action == Action::kComplete);
    if (seq - kFirst >= 8) {
      const auto late = root.on_contribution(data(seq - 8, 0), false);
      CHECK(late.action == Action::kDrop);
      CHECK(late.drop == Drop::kStale);
    }
    CHECK(root.on_contribution(data(seq - (seq == kFirst ? 0 : 1), 0), false).action == Action::kRepeat);
  }
}

TEST_CASE("on_contribution__foreign_child", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  CHECK(root.on_contribution(data(0, 2), false).drop == Drop::kBadChild);
  CHECK(root.on_contribution(data(0, 63), false).drop == Drop::kBadChild);
}

TEST_CASE("on_contribution__marks_are_ored", "[aggregator]") {
  Aggregator root({.window = 4, .children = 3});
  root.on_contribution(data(0, 0), false);
  root.on_contribution(data(0, 1), true);
  root.on_contribution(data(0, 2), false);
  CHECK((root.make_header(0).flags & kFlagCongested) != 0);
  Header marked = data(1, 0);
  marked.flags = kFlagCongested;
  root.on_contribution(marked, false);
  root.on_contribution(data(1, 1), false);
  root.on_contribution(data(1, 2), false);
  CHECK((root.make_header(1).flags & kFlagCongested) != 0);
  for (uint8_t child = 0; child < 3; ++child) root.on_contribution(data(2, child), false);
  CHECK((root.make_header(2).flags & kFlagCongested) == 0);
}

TEST_CASE("on_contribution__disagreement_is_refused_when_all_are_here", "[aggregator]") {
  Aggregator root({.window = 4, .children = 3});
  CHECK(root.on_contribution(data(0, 0, 7, 5), false).action == Action::kKeep);
  CHECK(root.on_contribution(data(0, 1, 8, 4), false).action == Action::kKeep);
  CHECK(root.on_contribution(data(0, 2, 7, 5), false).action == Action::kRefuse);
  const Header h = root.make_header(0);
  CHECK((h.flags & kFlagRefused) != 0);
  CHECK(h.op == 4);  // the lowest operation is the one that fails
  CHECK(root.on_contribution(data(0, 1, 8, 4), false).action == Action::kRepeat);
}

TEST_CASE("on_contribution__same_contract_but_other_fields", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  root.on_contribution(data(0, 0), false);
  Header other = data(0, 1);
  SECTION("elements") { other.elems = 5; }
  SECTION("type") { other.elem_type = Type::kI32; }
  SECTION("operator") { other.reduce_op = Op::kMax; }
  CHECK(root.on_contribution(other, false).action == Action::kRefuse);
}

TEST_CASE("on_contribution__refused_chunk_voids_the_window", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  for (uint32_t seq = 1; seq < 4; ++seq) root.on_contribution(data(seq, 0, 7), false);
  root.on_contribution(data(0, 0, 7), false);
  CHECK(root.on_contribution(data(0, 1, 8), false).action == Action::kRefuse);
  uint32_t bank;
  uint64_t released;
  for (uint32_t expected = 1; expected < 4; ++expected) {
    REQUIRE(root.poll_void(&bank, &released));
    CHECK(bank == expected);
    CHECK(released == 0b01);
  }
  CHECK_FALSE(root.poll_void(&bank, &released));
  CHECK(root.open_banks() == 0);
  CHECK(root.on_contribution(data(2, 1, 8), false).drop == Drop::kStale);  // a slower rank's void chunk
  CHECK(root.on_contribution(data(4, 0), false).action == Action::kKeep);
  CHECK(root.on_contribution(data(4, 1), false).action == Action::kComplete);
  CHECK(root.on_contribution(data(5, 1), false).action == Action::kKeep);
}

TEST_CASE("on_contribution__void_chunks_stay_void_after_another_refusal", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  for (uint32_t seq : {0u, 4u}) {  // the chunk after the void ones is refused as well
    root.on_contribution(data(seq, 0, 7), false);
    CHECK(root.on_contribution(data(seq, 1, 8), false).action == Action::kRefuse);
  }
  CHECK(root.on_contribution(data(2, 0, 7), false).drop == Drop::kStale);
  CHECK(root.open_banks() == 0);
  CHECK(root.on_contribution(data(8, 0), false).action == Action::kKeep);
  CHECK(root.on_contribution(data(10, 0), false).action == Action::kKeep);
}

TEST_CASE("on_contribution__a_void_chunk_voids_nothing_that_is_still_to_come", "[aggregator]") {
  Aggregator root({.window = 4, .children = 2});
  for (uint32_t seq : {2u, 0u}) {  // the later chunk is complete first; it is void itself once the earlier one is refused
    root.on_contribution(data(seq, 0, 7), false);
    CHECK(root.on_contribution(data(seq, 1, 8), false).action == Action::kRefuse);
  }
  CHECK(root.on_contribution(data(3, 0), false).drop == Drop::kStale);
  for (uint32_t seq = 4; seq < 8; ++seq) {
    CHECK(root.on_contribution(data(seq, 0), false).action == Action::kKeep);
    CHECK(root.on_contribution(data(seq, 1), false).action == Action::kComplete);
  }
}

TEST_CASE("on_contribution__later_chunk_releases_an_unfinished_one", "[aggregator]") {
  Aggregator root({.window = 2, .children = 2});
  root.on_contribution(data(0, 1), false);
  const auto d = root.on_contribution(data(4, 0), false);
  CHECK(d.action == Action::kKeep);
  CHECK(d.released == 0b10);
}

TEST_CASE("on_contribution__empty_adds_no_payload", "[aggregator]") {
  Aggregator root({.window = 2, .children = 2});
  Header empty = data(0, 0);
  empty.flags = kFlagEmpty;
  root.on_contribution(empty, false);
  CHECK(root.on_contribution(data(0, 1), false).action == Action::kComplete);
  CHECK(root.bank(0).with_payload == 0b10);
  CHECK((root.make_header(0).flags & kFlagEmpty) == 0);
  root.on_contribution([&] { Header h = empty; h.seq = 1; return h; }(), false);
  Header other = empty;
  other.seq = 1;
  other.child = 1;
  CHECK(root.on_contribution(other, false).action == Action::kComplete);
  CHECK((root.make_header(1).flags & kFlagEmpty) != 0);
}

TEST_CASE("inner__sends_up_repeats_up_and_delivers", "[aggregator]") {
  Aggregator inner({.window = 4, .children = 2, .root = false});
  inner.on_contribution(data(0, 0), false);
  CHECK(inner.on_result(result(0), false).drop == Drop::kUnexpected);
  CHECK(inner.on_contribution(data(0, 1), false).action == Action::kComplete);
  CHECK(inner.make_header(0).type == PacketType::kData);
  CHECK(inner.make_header(0).contributors == 2);
  CHECK(inner.on_contribution(data(0, 1), false).action == Action::kRepeatUp);
  CHECK(inner.open_banks() == 1);
  CHECK(inner.on_result(result(0, 8), false).drop == Drop::kFields);
  CHECK(inner.on_result(result(8), false).drop == Drop::kUnexpected);
  CHECK(inner.on_result(result(0), true).action == Action::kDeliver);
  CHECK(inner.make_header(0).type == PacketType::kResult);
  CHECK((inner.make_header(0).flags & kFlagCongested) != 0);
  CHECK(inner.bank(0).contributors == 9);
  CHECK(inner.on_result(result(0), false).drop == Drop::kStale);
  CHECK(inner.on_contribution(data(0, 0), false).action == Action::kRepeat);
  CHECK(inner.open_banks() == 0);
}

TEST_CASE("inner__answer_carries_what_only_others_gave", "[aggregator]") {
  Aggregator inner({.window = 4, .children = 1, .root = false});
  Header empty = data(0, 0);
  empty.flags = kFlagEmpty;
  CHECK(inner.on_contribution(empty, false).action == Action::kComplete);
  CHECK((inner.make_header(0).flags & kFlagEmpty) != 0);
  CHECK(inner.on_result(result(0), false).action == Action::kDeliver);
  CHECK((inner.make_header(0).flags & kFlagEmpty) == 0);
}

TEST_CASE("inner__refusal_goes_up_and_comes_down", "[aggregator]") {
  Aggregator inner({.window = 4, .children = 2, .root = false});
  inner.on_contribution(data(1, 0), false);
  inner.on_contribution(data(0, 0, 7), false);
  CHECK(inner.on_contribution(data(0, 1, 8), false).action == Action::kRefuse);
  CHECK(inner.make_header(0).type == PacketType::kData);
  CHECK((inner.make_header(0).flags & kFlagRefused) != 0);
  CHECK(inner.on_result(result(0), false).drop == Drop::kFields);
  uint32_t bank;
  uint64_t released;
  CHECK_FALSE(inner.poll_void(&bank, &released));  // not decided before the parent has answered
  CHECK(inner.on_result(result(0, 7, kFlagRefused), false).action == Action::kDeliver);
  CHECK(inner.poll_void(&bank, &released));
  CHECK(bank == 1);

  Aggregator upper({.window = 4, .children = 2});
  Header refused = data(0, 0, 7);
  refused.flags = kFlagRefused;
  upper.on_contribution(refused, false);
  CHECK(upper.on_contribution(data(0, 1, 7), false).action == Action::kRefuse);
}
