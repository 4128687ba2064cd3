// The simulator's own parts: the order of events, the draws, and that one seed is one run.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/sim/event_queue.h"
#include "tests/sim/rng.h"
#include "tests/sim/simulation.h"
#include "tests/sim/values.h"

using namespace gatun;
using namespace gatun::sim;

TEST_CASE("event_queue__by_time_then_as_pushed", "[sim]") {
  Events queue;
  Stream random(1, Draw::kRun);
  constexpr uint32_t kEvents = 5000;
  for (uint32_t i = 0; i < kEvents; ++i) queue.push(static_cast<TimeNs>(random.below(300)), EventKind::kHost, i);
  Events::Event before = queue.pop();
  for (uint32_t i = 1; i < kEvents; ++i) {
    const Events::Event event = queue.pop();
    REQUIRE((before.time < event.time || (before.time == event.time && before.index < event.index)));
    before = event;
  }
  CHECK(queue.empty());
}

TEST_CASE("event_queue__pop_and_push_is_both_in_turn", "[sim]") {
  Events one, two;
  for (uint32_t i = 0; i < 50; ++i) {
    one.push(i % 7, EventKind::kHost, i);
    two.push(i % 7, EventKind::kHost, i);
  }
  for (int64_t i = 0; i < 500; ++i) {
    const Events::Event replaced = one.pop_and_push(i), popped = two.pop();
    two.push(i, popped.kind, popped.index);
    REQUIRE(replaced.index == popped.index);
  }
  while (!one.empty()) REQUIRE(one.pop().index == two.pop().index);
  CHECK(two.empty());
}

TEST_CASE("stream__depends_on_its_key_only", "[sim]") {
  CHECK(Stream(7, Draw::kLoss, 3, 4).next() == Stream(7, Draw::kLoss, 3, 4).next());
  CHECK(Stream(7, Draw::kLoss, 3, 4).next() != Stream(7, Draw::kLoss, 4, 3).next());
  CHECK(Stream(7, Draw::kLoss, 3, 4).next() != Stream(7, Draw::kSpike, 3, 4).next());
  CHECK(Stream(7, Draw::kLoss, 3, 4).next() != Stream(8, Draw::kLoss, 3, 4).next());
}

TEST_CASE("stream__draws_stay_in_their_range", "[sim]") {
  Stream random(2, Draw::kRun);
  for (int i = 0; i < 10000; ++i) {
    CHECK(random.below(7) < 7);
    const uint64_t value = random.log_between(3, 1000);
    REQUIRE((value >= 3 && value <= 1000));
  }
}

TEST_CASE("draw_plan__limits_shift_no_other_draw", "[sim]") {
  for (uint64_t seed = 1; seed < 50; ++seed) {
    const Plan all = draw_plan(seed, {});
    Limits limits;
    limits.without = 1u << static_cast<int>(Fault::kLoss);
    const Plan fewer = draw_plan(seed, limits);
    CHECK_FALSE(fewer.has(Fault::kLoss));
    CHECK(fewer.rate(Fault::kSpike) == all.rate(Fault::kSpike));
    REQUIRE(fewer.lines.size() == all.lines.size());
    CHECK(fewer.lines[0][0].handle == all.lines[0][0].handle);
    CHECK(fewer.lines[0][0].calls.size() == all.lines[0][0].calls.size());
  }
}

TEST_CASE("simulate__one_seed_is_one_run", "[sim]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Plan plan = draw_plan(seed, {});
    Trace trace;
    const Verdict plain = simulate(plan, nullptr), traced = simulate(plan, &trace);
    CHECK(plain.failure.empty());
    CHECK(plain.hash == traced.hash);
    CHECK(plain.events == traced.events);
    CHECK_FALSE(trace.lines.empty());
  }
}

TEST_CASE("difference__names_the_missing_rank", "[sim]") {
  JobPlan job{.ranks = 3, .payload_bytes = 64};
  const OpPlan op{.type = Type::kU64, .elems = 4, .values = Values::kTags};
  const Shape shape(job, op);
  const uint64_t want[4] = {0b001001001}, got[4] = {0b010000001};
  const std::string text =
      difference(op, shape, 0, reinterpret_cast<const std::byte*>(got), reinterpret_cast<const std::byte*>(want));
  CHECK(text.find("contributions of rank 0, 1, ...: 1 0 2") != std::string::npos);
}
