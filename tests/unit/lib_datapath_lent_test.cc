#include <catch2/catch.hpp>

#include "tests/unit/lib_datapath_rig.h"

using namespace gatun;

namespace {

constexpr uint64_t kLong = kPayload * 6;

std::unique_ptr<FakeLink> lending_link() {
  auto link = std::make_unique<FakeLink>(true, 4 * kPayload);
  link->lends = true;
  return link;
}

// What an operation of kLong bytes will be sent from.
std::span<std::byte> source(Rig& rig) {
  rig.send.resize(kLong);
  return rig.send;
}

bool untouched(std::span<const std::byte> arena) {
  return std::all_of(arena.begin(), arena.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

TEST_CASE("lend__payloads_are_sent_from_where_they_are", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  REQUIRE(rig.link.lent.size() == 1);
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  REQUIRE(rig.link.sent.size() == 4);
  const std::span<std::byte> arena = rig.link.arena(0);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(rig.link.sent[i].at == rig.send.data() + i * kPayload);
    CHECK(rig.link.sent[i].seen_at == arena.data() + i * kPayload);  // as if it had been copied there
  }
  CHECK(untouched(arena));
  CHECK(rig.datapath->copied_bytes() == 0);
  rig.echo_all();
  CHECK(rig.datapath->poll_completed() != nullptr);
  CHECK(rig.recv == rig.send);
  CHECK(untouched(arena));
  CHECK(rig.datapath->copied_bytes() == kLong);  // of results
}

TEST_CASE("lend__a_repeat_is_sent_from_there_too", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  rig.submit(kPayload);
  rig.datapath->pass(kNow);
  rig.datapath->pass(rig.datapath->worker().poll_timer());
  REQUIRE(rig.link.sent.size() == 2);
  CHECK(rig.link.sent[1].header.flags == kFlagRepeat);
  CHECK(rig.link.sent[1].at == rig.send.data());
  CHECK(rig.link.sent[1].seen_at == rig.link.arena(0).data());
}

TEST_CASE("lend__only_what_lies_in_it_whole", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig).first(kLong - 1)).ok());
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.at(0).at == rig.link.arena(0).data());
  CHECK(rig.link.sent.at(0).seen_at == nullptr);
  CHECK(rig.datapath->copied_bytes() == 4 * kPayload);
}

TEST_CASE("lend__where_the_transport_cannot_nothing_changes", "[lib][datapath]") {
  Rig rig({}, std::make_unique<FakeLink>(true, 4 * kPayload));
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  CHECK(rig.link.lent.empty());
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.at(0).at == rig.link.arena(0).data());
  rig.echo_all();
  CHECK(rig.datapath->take_back(source(rig)).ok());
}

TEST_CASE("lend__an_error_leaves_the_copies", "[lib][datapath]") {
  Rig rig({}, lending_link());
  rig.link.lend_status = {Code::kSystem, "too little may be locked"};
  CHECK(rig.datapath->lend(source(rig)).code() == Code::kSystem);
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.at(0).at == rig.link.arena(0).data());
}

// The packet that waits for room names the tensor; it must not leave once the tensor is not ours.
TEST_CASE("lend__what_had_no_room_waits_while_its_operation_lives", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  rig.link.room = 1;
  rig.submit(kPayload * 3);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.size() == 1);
  FakeLink::Packet refusal = rig.link.answer_to(rig.link.sent[0]);
  refusal.header.flags = kFlagRefused;
  rig.link.push(refusal.header, {});
  rig.link.room = 0;
  rig.datapath->pass(kNow);
  REQUIRE(rig.datapath->take_back(source(rig)).ok());
  rig.link.room = 100;
  rig.datapath->pass(kNow);
  for (size_t i = 1; i < rig.link.sent.size(); ++i) CHECK(rig.link.sent[i].seen_at == nullptr);
}

TEST_CASE("take_back__not_while_an_operation_reads_it", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  const Status status = rig.datapath->take_back(source(rig));
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(rig.link.lent.size() == 1);
  rig.echo_all();
  CHECK(rig.datapath->take_back(source(rig)).ok());
  CHECK(rig.link.lent.empty());
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  CHECK(rig.link.sent.at(0).seen_at == nullptr);
}

// Another rank's operation may still succeed with what this one has said to the switch.
TEST_CASE("fail_all__takes_all_back", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  rig.datapath->fail_all({Code::kTimeout, "late"});
  CHECK(rig.link.taken_all_back == 1);
  CHECK(rig.datapath->poll_completed() != nullptr);
  CHECK(rig.datapath->take_back(source(rig)).ok());
}

TEST_CASE("freeze__takes_all_back", "[lib][datapath]") {
  Rig rig({}, lending_link());
  REQUIRE(rig.datapath->lend(source(rig)).ok());
  rig.datapath->freeze();
  CHECK(rig.link.taken_all_back == 1);
  CHECK(rig.datapath->lend(source(rig)).ok());
  CHECK(rig.link.lent.size() == 1);  // not again
}
