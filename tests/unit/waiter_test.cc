#include "host/transport/waiter.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

namespace gatun {
namespace {

using Clock = std::chrono::steady_clock;
constexpr TimeNs kLong = 20 * kSecond;

bool was_long(Clock::time_point since) { return Clock::now() - since > std::chrono::seconds(10); }

TEST_CASE("wait__returns_at_once_after_a_wake", "[waiter]") {
  auto waiter = std::move(Waiter::make().value());
  const auto since = Clock::now();
  for (int i = 0; i < 100; ++i) {
    waiter->wake();
    waiter->wake();
    waiter->wait(kLong);
  }
  REQUIRE_FALSE(was_long(since));
  REQUIRE(waiter->sleeps() == 0);
}

TEST_CASE("wait__zero_does_not_sleep_and_takes_the_wake", "[waiter]") {
  auto waiter = std::move(Waiter::make().value());
  waiter->wake();
  waiter->wait(0);
  waiter->wait(-5);
  REQUIRE(waiter->sleeps() == 0);
  waiter->wait(kUs);
  REQUIRE(waiter->sleeps() == 1);
}

TEST_CASE("wake__none_is_lost_between_threads", "[waiter]") {
  auto waiter = std::move(Waiter::make().value());
  auto other = std::move(Waiter::make().value());
  constexpr int kRounds = 3000;
  std::atomic<int> turn{0};
  std::atomic<bool> lost{false};
  const auto play = [&](Waiter& own, Waiter& peer, int parity) {
    for (int round = parity; round < kRounds && !lost; round += 2) {
      const auto since = Clock::now();
      while (turn != round && !lost) {
        own.wait(kLong);
        if (was_long(since)) lost = true;
      }
      turn = round + 1;
      peer.wake();
    }
  };
  std::thread thread([&] { play(*other, *waiter, 1); });
  play(*waiter, *other, 0);
  thread.join();
  REQUIRE_FALSE(lost);
  REQUIRE(turn == kRounds);
}

TEST_CASE("wake__many_wakers_one_sleeper", "[waiter]") {
  auto waiter = std::move(Waiter::make().value());
  constexpr int kWakers = 3, kWakes = 2000;
  std::atomic<int> done{0};
  std::vector<std::thread> wakers;
  for (int i = 0; i < kWakers; ++i) {
    wakers.emplace_back([&] {
      for (int k = 0; k < kWakes; ++k) {
        ++done;
        waiter->wake();
        if (k % 16 == 0) std::this_thread::yield();
      }
    });
  }
  bool lost = false;
  while (done < kWakers * kWakes && !lost) {
    const auto since = Clock::now();
    waiter->wait(kLong);
    lost = was_long(since);
  }
  for (std::thread& waker : wakers) waker.join();
  REQUIRE_FALSE(lost);
}

TEST_CASE("idle__pauses_yields_then_blocks", "[backoff]") {
  Backoff backoff;
  int rounds = 0;
  while (!backoff.idle()) ++rounds;
  REQUIRE(rounds == 68);
  backoff.reset();
  REQUIRE_FALSE(backoff.idle());
}

TEST_CASE("idle__busy_polling_never_blocks", "[backoff]") {
  Backoff backoff(true);
  for (int i = 0; i < 5000; ++i) REQUIRE_FALSE(backoff.idle());
}

}  // namespace
}  // namespace gatun
