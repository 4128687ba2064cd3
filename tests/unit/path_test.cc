#include "protocols/path.h"

#include <catch2/catch.hpp>
#include <deque>
#include <string>

using namespace gatun;
using State = PathAgreement::State;
using Round = PathAgreement::Round;

namespace {

constexpr PathAgreement::Job kJob{.handle = 0x1234, .window = 4, .first_op = 0xffffffff};
constexpr PathAgreement::Job kNextJob{.handle = 0x5678, .window = 4, .first_op = 10};

// Ranks and an ordered mesh between them; nothing arrives before deliver().
class Ranks {
 public:
  explicit Ranks(uint32_t count, const PathAgreement::Job* job = nullptr) : queues_(count * count) {
    std::vector<std::string> names;
    for (uint32_t rank = 0; rank < count; ++rank) names.push_back("rank " + std::to_string(rank));
    for (uint32_t rank = 0; rank < count; ++rank) ranks_.emplace_back(rank, names, job);
  }
  PathAgreement& operator[](uint32_t rank) { return ranks_[rank]; }
  uint32_t count() const { return static_cast<uint32_t>(ranks_.size()); }
  void send(uint32_t from, const mesh_wire::Message& message) {
    for (uint32_t to = 0; to < count(); ++to) {
      if (to != from) queues_[from * count() + to].push_back(message);
    }
  }
  void deliver(uint32_t from, uint32_t to) {
    auto& queue = queues_[from * count() + to];
    while (!queue.empty()) {
      const mesh_wire::Message message = queue.front();
      queue.pop_front();
      ranks_[to].on_message(from, message);
    }
  }
  void deliver() {
    for (uint32_t from = 0; from < count(); ++from) {
      for (uint32_t to = 0; to < count(); ++to) deliver(from, to);
    }
  }
  void announce(uint32_t rank, uint32_t ordinal, const Contract& contract = {}) {
    send(rank, ranks_[rank].announce(ordinal, contract));
  }
  void freeze(uint32_t rank, uint32_t next_op, uint32_t held) {
    Holdings holdings;
    holdings.next_op = next_op;
    for (uint32_t op = kJob.first_op; op != next_op; ++op) holdings.operations.push_back({op, 1, {}});
    holdings.trees = {{.next = {held, 0}, .ahead = {}}};
    send(rank, ranks_[rank].freeze(holdings));
  }

 private:
  std::vector<PathAgreement> ranks_;
  std::vector<std::deque<mesh_wire::Message>> queues_;
};

}  // namespace

TEST_CASE("round__runs_when_all_are_there", "[path]") {
  Ranks ranks(3);
  CHECK(ranks[0].state() == State::kRing);
  CHECK(ranks[0].round() == Round::kNone);
  ranks.announce(0, 0);
  ranks.announce(1, 0);
  ranks.deliver();
  CHECK(ranks[0].round() == Round::kWaiting);
  CHECK(ranks[0].missing() == 4);
  ranks.announce(2, 0);
  CHECK(ranks[2].round() == Round::kRun);
  ranks.deliver();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(ranks[rank].round() == Round::kRun);
    CHECK(ranks[rank].missing() == 0);
  }
  // One goes ahead; what it announces next waits for the others.
  CHECK_FALSE(ranks[0].complete());
  ranks.announce(0, 1);
  ranks.deliver();
  CHECK(ranks[1].round() == Round::kRun);
  CHECK_FALSE(ranks[1].complete());
  ranks.announce(1, 1);
  CHECK(ranks[1].missing() == 4);
}

TEST_CASE("round__mismatch_is_the_same_for_all", "[path]") {
  Ranks ranks(3);
  ranks.announce(0, 0, {.count = 4});
  ranks.announce(1, 0, {.count = 5});
  ranks.announce(2, 0, {.count = 4});
  ranks.deliver();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(ranks[rank].round() == Round::kMismatch);
    CHECK(ranks[rank].mismatch() ==
          "operation 0 differs between ranks: ranks 0, 2: allreduce of 4 f32, sum; rank 1: allreduce of 5 f32, sum");
    CHECK_FALSE(ranks[rank].complete());
  }
}

TEST_CASE("round__no_elements_at_one_rank", "[path]") {
  Ranks ranks(3);
  ranks.announce(0, 3, {.count = 4});
  ranks.announce(1, 5);  // operation 3 was empty there
  ranks.deliver();
  CHECK(ranks[0].round() == Round::kWaiting);
  ranks.announce(2, 3, {.count = 4});
  ranks.deliver();
  CHECK(ranks[0].round() == Round::kMismatch);
  CHECK(ranks[0].mismatch() == ranks[2].mismatch());
  CHECK(ranks[0].mismatch().find("rank 1: nothing, no elements") != std::string::npos);
  CHECK(ranks[1].round() == Round::kWaiting);
  for (const uint32_t rank : {0u, 2u}) {
    CHECK_FALSE(ranks[rank].complete());
    ranks.announce(rank, 5);
  }
  ranks.deliver();
  for (uint32_t rank = 0; rank < 3; ++rank) CHECK(ranks[rank].round() == Round::kRun);
}

TEST_CASE("complete__goes_over_when_all_are_ready_for_the_same", "[path]") {
  Ranks ranks(2);
  ranks[0].ready(&kNextJob);
  ranks.announce(0, 0);
  ranks.announce(1, 0);
  ranks.deliver();
  for (uint32_t rank = 0; rank < 2; ++rank) CHECK_FALSE(ranks[rank].complete());
  ranks[1].ready(&kJob);
  ranks.announce(0, 1);
  ranks.announce(1, 1);
  ranks.deliver();
  for (uint32_t rank = 0; rank < 2; ++rank) CHECK_FALSE(ranks[rank].complete());
  ranks[1].ready(&kNextJob);
  ranks.announce(0, 2);
  ranks.announce(1, 2);
  ranks.deliver();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    CHECK(ranks[rank].complete());
    CHECK(ranks[rank].state() == State::kSwitch);
    CHECK(ranks[rank].job() == kNextJob.handle);
    CHECK(ranks[rank].epoch() == 1);
    CHECK(ranks[rank].first_ordinal() == 3);
    CHECK(ranks[rank].plan_ordinal(12) == 5);
  }
}

TEST_CASE("freeze__all_follow_and_make_one_plan", "[path]") {
  Ranks ranks(3, &kJob);
  ranks[1].on_suspect("no answer");
  CHECK(ranks[1].state() == State::kFreeze);
  ranks.freeze(1, kJob.first_op + 3, kJob.first_op + 1);
  CHECK(ranks[1].state() == State::kFrozen);
  CHECK(ranks[1].missing() == 5);
  ranks.deliver();
  for (const uint32_t rank : {0u, 2u}) {
    CHECK(ranks[rank].state() == State::kFreeze);
    CHECK(ranks[rank].why() == "no answer");
    ranks.freeze(rank, kJob.first_op + 2, kJob.first_op + (rank == 0 ? 2 : 1));
  }
  ranks.deliver();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(ranks[rank].state() == State::kRecover);
    CHECK(ranks[rank].plan().begin_op() == kJob.first_op + 1);
    CHECK(ranks[rank].plan().end_op() == kJob.first_op + 2);
    CHECK(ranks[rank].plan().handovers().size() == 1);
    CHECK(ranks[rank].ring_ordinal() == 2);
  }
  // Rank 0 is through first; its announcement waits.
  ranks[0].recovered();
  ranks.announce(0, 2);
  ranks.deliver();
  CHECK(ranks[1].state() == State::kRecover);
  ranks[1].recovered();
  ranks.announce(1, 2);
  CHECK(ranks[1].missing() == 4);
  ranks[2].on_suspect("again");
  CHECK(ranks[2].state() == State::kRecover);
}

TEST_CASE("freeze__at_a_rank_that_has_not_gone_over_yet", "[path]") {
  Ranks ranks(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks[rank].ready(&kJob);
    ranks.announce(rank, 0);
  }
  ranks.deliver(1, 0);
  ranks.deliver(2, 0);
  CHECK(ranks[0].complete());
  ranks[0].on_suspect("dead already");
  ranks.freeze(0, kJob.first_op, kJob.first_op);
  ranks.deliver();
  CHECK(ranks[1].state() == State::kRing);
  CHECK(ranks[1].complete());
  CHECK(ranks[1].state() == State::kFreeze);
  CHECK(ranks[2].complete());
  for (const uint32_t rank : {1u, 2u}) ranks.freeze(rank, kJob.first_op, kJob.first_op);
  ranks.deliver();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(ranks[rank].state() == State::kRecover);
    CHECK(ranks[rank].ring_ordinal() == 1);
    ranks[rank].recovered();
    CHECK(ranks[rank].epoch() == 2);
    CHECK(ranks[rank].state() == State::kRing);
  }
}

TEST_CASE("on_end__names_the_dead", "[path]") {
  Ranks ranks(2, &kJob);
  ranks[0].on_suspect("x");
  ranks.freeze(0, kJob.first_op, kJob.first_op);
  ranks[0].on_end(1, "closed its connection");
  CHECK(ranks[0].state() == State::kFailed);
  CHECK(ranks[0].status().code() == Code::kRankLost);
  CHECK(ranks[0].status().message() == std::string("rank 1 is lost: it closed its connection"));
  ranks[0].on_suspect("y");
  ranks[0].on_message(1, mesh_wire::Leave{});
  CHECK(ranks[0].state() == State::kFailed);
}

TEST_CASE("on_leave__fails_only_who_waits", "[path]") {
  Ranks ranks(2);
  ranks[0].on_message(1, mesh_wire::Leave{2});
  ranks[0].on_end(1, "closed its connection");
  CHECK(ranks[0].state() == State::kRing);
  ranks[0].announce(2, {.count = 1});
  CHECK(ranks[0].status().code() == Code::kRankLost);
  CHECK(std::string(ranks[0].status().message()) ==
        "rank 1 has left after 2 operations; allreduce of 1 f32, sum waits for it");
}

TEST_CASE("on_leave__a_rank_that_has_left_still_says_what_it_holds", "[path]") {
  Ranks ranks(2, &kJob);
  CHECK(ranks[0].staying() == 2);
  ranks[0].on_message(1, mesh_wire::Leave{1});
  CHECK(ranks[0].staying() == 0);
  ranks[0].on_suspect("no answer");
  ranks.freeze(0, kJob.first_op + 1, kJob.first_op);
  CHECK(ranks[0].state() == State::kFrozen);
  SECTION("it does") {
    ranks.deliver();
    ranks.freeze(1, kJob.first_op + 1, kJob.first_op + 1);
    ranks.deliver();
    CHECK(ranks[0].state() == State::kRecover);
  }
  SECTION("it has gone") {
    ranks[0].on_end(1, "closed its connection");
    CHECK(ranks[0].status().code() == Code::kRankLost);
    CHECK(std::string(ranks[0].status().message()).find("rank 1 has left after 1 operation;") == 0);
  }
}

TEST_CASE("on_abort__fails_all", "[path]") {
  Ranks ranks(2);
  ranks[0].on_message(1, mesh_wire::Abort{"tired", true});
  CHECK(ranks[0].status().code() == Code::kTimeout);
}

TEST_CASE("on_message__a_sign_of_life_changes_nothing", "[path]") {
  for (const PathAgreement::Job* job : {static_cast<const PathAgreement::Job*>(nullptr), &kJob}) {
    Ranks ranks(2, job);
    const State before = ranks[0].state();
    for (const bool ask : {true, false}) ranks[0].on_message(1, mesh_wire::KeepAlive{ask});
    CHECK(ranks[0].state() == before);
    CHECK(ranks[0].status().ok());
  }
}

TEST_CASE("on_message__confused_ranks_are_found_out", "[path]") {
  const auto state_after = [](const PathAgreement::Job* job, const mesh_wire::Message& message) {
    Ranks ranks(2, job);
    ranks[0].on_message(1, message);
    return ranks[0].status().code();
  };
  CHECK(state_after(nullptr, mesh_wire::Announce{.epoch = 0}) == Code::kOk);
  CHECK(state_after(nullptr, mesh_wire::Announce{.epoch = 1}) == Code::kInternal);
  CHECK(state_after(&kJob, mesh_wire::Announce{.epoch = 0}) == Code::kInternal);
  CHECK(state_after(&kJob, mesh_wire::Announce{.epoch = 1}) == Code::kOk);
  CHECK(state_after(&kJob, mesh_wire::Frozen{.epoch = 0, .job = 9}) == Code::kInternal);
  CHECK(state_after(&kJob, mesh_wire::Frozen{.epoch = 0, .job = kJob.handle, .first_ordinal = 1}) == Code::kInternal);
  CHECK(state_after(&kJob, mesh_wire::Frozen{.epoch = 0, .job = kJob.handle}) == Code::kOk);
  CHECK(state_after(nullptr, mesh_wire::Frozen{.epoch = 0, .job = 0}) == Code::kInternal);
  CHECK(state_after(nullptr, mesh_wire::Frozen{.epoch = 1, .job = 5}) == Code::kOk);
  Ranks ranks(2);
  for (uint32_t ordinal = 0; ordinal < 3; ++ordinal) ranks[0].on_message(1, mesh_wire::Announce{.ordinal = ordinal});
  CHECK(ranks[0].status().code() == Code::kInternal);
}
