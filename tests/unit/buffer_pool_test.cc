#include "host/transport/buffer_pool.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <set>

namespace gatun {
namespace {

TEST_CASE("take__hands_out_each_buffer_once_and_then_none", "[buffer_pool]") {
  auto pool = BufferPool::make(5, 1000);
  REQUIRE(pool.ok());
  std::set<BufferId> taken;
  for (int i = 0; i < 5; ++i) taken.insert(pool.value()->take());
  REQUIRE(taken.size() == 5);
  REQUIRE(taken.count(kNoBuffer) == 0);
  REQUIRE(pool.value()->take() == kNoBuffer);
  REQUIRE(pool.value()->free_count() == 0);
}

TEST_CASE("take__last_released_comes_first", "[buffer_pool]") {
  auto pool = BufferPool::make(4, 64);
  const BufferId a = pool.value()->take(), b = pool.value()->take();
  pool.value()->give(b);
  pool.value()->give(a);
  REQUIRE(pool.value()->take() == a);
  REQUIRE(pool.value()->take() == b);
}

TEST_CASE("release__frees_with_the_last_reference", "[buffer_pool]") {
  auto pool = BufferPool::make(1, 64);
  const BufferId id = pool.value()->take();
  pool.value()->set_references(id, 3);
  pool.value()->release(id);
  pool.value()->release(id);
  REQUIRE(pool.value()->take() == kNoBuffer);
  pool.value()->release(id);
  REQUIRE(pool.value()->take() == id);
}

TEST_CASE("data__buffers_do_not_overlap", "[buffer_pool]") {
  constexpr uint32_t kCount = 40, kBytes = 4096;
  auto pool = BufferPool::make(kCount, kBytes);
  for (uint32_t i = 0; i < kCount; ++i) std::memset(pool.value()->data(i), static_cast<int>(i), kBytes);
  for (uint32_t i = 0; i < kCount; ++i) {
    for (uint32_t k = 0; k < kBytes; ++k) REQUIRE(pool.value()->data(i)[k] == std::byte(i));
  }
}

}  // namespace
}  // namespace gatun
