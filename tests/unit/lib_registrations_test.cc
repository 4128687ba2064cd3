#include <catch2/catch.hpp>
#include <cstring>

#include "host/lib/registrations.h"

using namespace gatun;

namespace {

std::byte memory[100];

std::span<std::byte> part(size_t from, size_t bytes) {
  return {memory + from, bytes};
}

}  // namespace

TEST_CASE("add__equal_ranges_are_counted", "[lib][registrations]") {
  Registrations registrations;
  bool first = false, last = true;
  CHECK(registrations.add(part(0, 50), &first).ok());
  CHECK(first);
  CHECK(registrations.add(part(0, 50), &first).ok());
  CHECK_FALSE(first);
  CHECK(registrations.find(memory, &last).size() == 50);
  CHECK_FALSE(last);
  CHECK(registrations.remove(memory).ok());
  CHECK(registrations.find(memory, &last).size() == 50);
  CHECK(last);
  CHECK(registrations.remove(memory).ok());
  CHECK(registrations.find(memory, &last).empty());
}

TEST_CASE("add__ranges_may_overlap_but_not_begin_together", "[lib][registrations]") {
  Registrations registrations;
  bool first = false;
  CHECK(registrations.add(part(0, 50), &first).ok());
  CHECK(registrations.add(part(10, 90), &first).ok());
  CHECK(first);
  const Status status = registrations.add(part(10, 20), &first);
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(std::strstr(status.message(), "90 bytes are registered at this address, and these are 20") != nullptr);
  size_t bytes = 0;
  registrations.for_each([&](std::span<std::byte> range) { bytes += range.size(); });
  CHECK(bytes == 140);
}

TEST_CASE("remove__what_is_not_there_is_refused", "[lib][registrations]") {
  Registrations registrations;
  bool first = false, last = false;
  CHECK(registrations.add(part(0, 50), &first).ok());
  CHECK(registrations.remove(memory + 1).code() == Code::kInvalidArgument);
  CHECK(registrations.remove(nullptr).code() == Code::kInvalidArgument);
  CHECK(registrations.find(memory, &last).size() == 50);
}
