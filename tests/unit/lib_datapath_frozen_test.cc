#include <catch2/catch.hpp>

#include "tests/unit/lib_datapath_rig.h"

using namespace gatun;

namespace {

constexpr uint64_t kLong = kPayload * 10 + 5;  // longer than the window of 4

bool inside(std::span<const std::byte> part, const std::vector<std::byte>& whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

// Chunk `index` of the operation is retained, with the bytes that its answer had.
bool keeps(const Rig& rig, uint32_t op, uint64_t index, bool in_tensor) {
  std::span<const std::byte> payload;
  if (!rig.datapath->retained(op, index, &payload)) return false;
  return std::equal(payload.begin(), payload.end(), rig.send.begin() + index * kPayload) && !payload.empty() &&
         inside(payload, rig.recv) == in_tensor;
}

}  // namespace

TEST_CASE("retain__a_long_operation_keeps_its_last_answers_where_they_are", "[lib][datapath]") {
  Rig rig({.retain = true});
  rig.submit(kLong);
  rig.datapath->pass(kNow);
  for (int i = 0; i < 2; ++i) {
    rig.echo();
    rig.datapath->pass(kNow + i);
  }
  rig.datapath->freeze();
  for (uint64_t index = 4; index < 8; ++index) CHECK(keeps(rig, 0, index, true));
  std::span<const std::byte> payload;
  CHECK_FALSE(rig.datapath->retained(0, 3, &payload));
}

TEST_CASE("retain__what_ended_is_copied_before_its_owner_writes", "[lib][datapath]") {
  Rig rig({.retain = true});
  Request* request = rig.submit(kLong);
  rig.echo_all();
  REQUIRE(rig.datapath->poll_completed() == request);
  CHECK(rig.recv == rig.send);
  std::fill(rig.recv.begin(), rig.recv.end(), std::byte{0xdd});
  rig.datapath->freeze();
  for (uint64_t index = 7; index < 11; ++index) CHECK(keeps(rig, 0, index, false));
}

TEST_CASE("retain__operations_that_follow_push_the_earlier_out", "[lib][datapath]") {
  Rig rig({.retain = true});
  rig.submit(kLong);
  rig.echo_all();
  const std::vector<std::byte> first = rig.recv;
  rig.submit(kPayload * 2);  // fits into the window: copied at once
  rig.echo_all();
  std::fill(rig.recv.begin(), rig.recv.end(), std::byte{0xdd});
  rig.datapath->freeze();
  for (uint64_t index = 9; index < 11; ++index) CHECK(keeps(rig, 0, index, false));
  for (uint64_t index = 0; index < 2; ++index) CHECK(keeps(rig, 1, index, false));
}

TEST_CASE("retain__a_part_of_an_answer_is_not_the_answer", "[lib][datapath]") {
  Rig rig({.retain = true});
  rig.send.resize(2 * kLong);
  rig.submit(kLong, Collective::kReduceScatter, 1);
  rig.datapath->pass(kNow);
  for (int i = 0; i < 3; ++i) {
    rig.echo();
    rig.datapath->pass(kNow + i);
  }
  rig.datapath->freeze();
  for (uint64_t index = 8; index < 11; ++index) CHECK(keeps(rig, 0, index, false));  // outside, or with the border in it
  CHECK(keeps(rig, 0, 11, true));                                                    // of its own segment only
}

TEST_CASE("retain__answers_that_stay_where_they_came_are_not_copied", "[lib][datapath]") {
  Rig rig({.retain = true}, std::make_unique<FakeLink>(true, 4 * kPayload));
  rig.submit(kPayload);
  rig.datapath->pass(kNow);
  const FakeLink::Packet answer = rig.link.answer_to(rig.link.sent[0]);
  rig.link.push(answer.header, answer.payload);
  rig.datapath->pass(kNow);
  std::span<const std::byte> payload;
  REQUIRE(rig.datapath->retained(0, 0, &payload));
  CHECK(payload.data() == rig.link.delivered(0));
}

TEST_CASE("take__the_tensor_is_its_owners_again", "[lib][datapath]") {
  Rig rig({.retain = true});
  Request* request = rig.submit(kLong);
  rig.datapath->pass(kNow);
  for (int i = 0; i < 2; ++i) {
    rig.echo();
    rig.datapath->pass(kNow + i);
  }
  rig.datapath->freeze();
  CHECK(rig.datapath->take(0) == request);
  CHECK(rig.datapath->take(0) == nullptr);
  std::fill(rig.recv.begin(), rig.recv.end(), std::byte{0xdd});
  for (uint64_t index = 4; index < 8; ++index) CHECK(keeps(rig, 0, index, false));
}

TEST_CASE("deliver__only_what_a_living_operation_keeps", "[lib][datapath]") {
  Rig rig({.retain = true});
  rig.submit(kPayload * 2);
  rig.datapath->freeze();
  rig.datapath->deliver(0, 1, rig.send.data());
  CHECK(std::equal(rig.recv.begin() + kPayload, rig.recv.end(), rig.send.begin()));
  CHECK(rig.recv[0] == std::byte{0xee});
  rig.datapath->take(0);
  rig.datapath->deliver(0, 0, rig.send.data());
  CHECK(rig.recv[0] == std::byte{0xee});
}
