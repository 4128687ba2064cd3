#include "protocols/congestion.h"

#include <catch2/catch.hpp>

using namespace gatun;

namespace {
// Acknowledges one full window of chunks, `marked` of them with a mark.
void round_trip(CongestionWindow& window, uint64_t* seq, uint32_t marked) {
  const uint32_t n = window.chunks();
  const uint64_t first = *seq;
  for (uint32_t i = 0; i < n; ++i) window.on_result(first + i, first + n, i < marked);
  *seq += n;
}
}  // namespace

TEST_CASE("on_result__slow_start_doubles_up_to_the_limit", "[congestion]") {
  CongestionWindow window(2, 64);
  uint64_t seq = 0;
  uint32_t last = window.chunks();
  for (int i = 0; i < 5; ++i) {
    round_trip(window, &seq, 0);
    CHECK(window.chunks() == std::min(64u, last * 2));
    last = window.chunks();
  }
  for (int i = 0; i < 5; ++i) round_trip(window, &seq, 0);
  CHECK(window.chunks() == 64);
}

TEST_CASE("on_result__marks_cut_by_the_marked_fraction", "[congestion]") {
  CongestionWindow all(32, 64);
  uint64_t seq = 0;
  for (int i = 0; i < 40; ++i) round_trip(all, &seq, all.chunks());
  CHECK(all.chunks() <= 2);  // everything marked: halved each window

  CongestionWindow few(32, 64);
  seq = 0;
  for (int i = 0; i < 60; ++i) round_trip(few, &seq, 0);
  const uint32_t before = few.chunks();
  for (int i = 0; i < 60; ++i) round_trip(few, &seq, 0);
  CHECK(few.chunks() == before);
  round_trip(few, &seq, before / 2);
  few.on_result(seq, seq + before, false);  // ends the marked window: alpha is small after long quiet, and so is the cut
  CHECK(few.chunks() < before);
  CHECK(few.chunks() > before * 9 / 10);
}

TEST_CASE("on_loss__once_per_window", "[congestion]") {
  CongestionWindow window(32, 64);
  window.on_loss(10, 42);
  CHECK(window.chunks() == 16);
  for (uint64_t seq = 11; seq < 42; ++seq) window.on_loss(seq, 50);
  CHECK(window.chunks() == 16);
  window.on_loss(42, 60);
  CHECK(window.chunks() == 8);
}

TEST_CASE("window__never_below_one_and_recovers", "[congestion]") {
  CongestionWindow window(16, 64);
  for (int i = 0; i < 100; ++i) window.on_timeout();
  CHECK(window.chunks() == 1);
  uint64_t seq = 0;
  for (int i = 0; i < 100; ++i) round_trip(window, &seq, window.chunks());
  CHECK(window.chunks() >= 1);
  for (int i = 0; i < 500; ++i) round_trip(window, &seq, 0);
  CHECK(window.chunks() == 64);
}

TEST_CASE("RttEstimator__follows_and_comes_back_down", "[congestion]") {
  RttEstimator rtt(20'000'000, 1'000'000, 200'000'000);
  CHECK(rtt.rto_ns(0) == 20'000'000);
  for (int i = 0; i < 50; ++i) rtt.on_sample(100'000'000);
  CHECK(rtt.rto_ns(0) >= 100'000'000);
  CHECK(rtt.rto_ns(3) == 200'000'000);  // doubled, but at most the maximum
  for (int i = 0; i < 200; ++i) rtt.on_sample(100'000);
  CHECK(rtt.rto_ns(0) == 1'000'000);
  CHECK(rtt.rto_ns(255) <= 200'000'000);
}
