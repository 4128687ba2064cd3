// The search for the largest packet that passes.
#include <atomic>
#include <catch2/catch.hpp>

#include "host/tools/doctor/path_checks.h"

namespace gatun {

TEST_CASE("largest_passing__every_limit", "[doctor]") {
  for (const uint32_t most : {64u, 128u, 1408u, 8896u}) {
    for (uint32_t limit = 0; limit <= most; limit += 64) {
      const uint32_t found = largest_passing(most, [&](uint32_t bytes) { return bytes <= limit; });
      if (found != limit) CHECK(found == limit);  // one assertion for each would take most of the time
    }
  }
}

TEST_CASE("largest_passing__few_rounds_and_only_sensible_sizes", "[doctor]") {
  std::atomic<int> asked{0}, wrong{0};
  CHECK(largest_passing(8896, [&](uint32_t bytes) {
          ++asked;
          wrong += bytes == 0 || bytes > 8896 || bytes % 64 != 0;
          return bytes <= 1408;
        }) == 1408);
  CHECK(wrong == 0);
  CHECK(asked <= 48);  // two rounds
}

TEST_CASE("largest_passing__answers_that_contradict_each_other_end", "[doctor]") {
  std::atomic<int> asked{0};
  const uint32_t found = largest_passing(8896, [&](uint32_t bytes) {
    ++asked;
    return bytes / 64 % 2 == 0;
  });
  CHECK(found / 64 % 2 == 0);
  CHECK(asked <= 72);
}

}  // namespace gatun
