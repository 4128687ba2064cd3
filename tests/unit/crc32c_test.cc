#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "protocols/wire.h"

using namespace gatun;

namespace {

// Straight from the definition: one bit at a time.
uint32_t crc32c_bitwise(uint32_t crc, const void* bytes, size_t size) {
  const auto* p = static_cast<const unsigned char*>(bytes);
  crc = ~crc;
  for (size_t i = 0; i < size; ++i) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0);
  }
  return ~crc;
}

std::vector<unsigned char> random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(size);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

}  // namespace

TEST_CASE("crc32c__gives_published_values", "[crc32c]") {
  std::string digits = "123456789";
  std::vector<unsigned char> zeros(32, 0), ones(32, 0xff), up(32), down(32);
  for (unsigned i = 0; i < 32; ++i) {
    up[i] = static_cast<unsigned char>(i);
    down[i] = static_cast<unsigned char>(31 - i);
  }
  for (auto* f : {&crc32c, &crc32c_portable}) {
    CHECK(f(0, digits.data(), digits.size()) == 0xe3069283u);
    // RFC 3720, appendix B.4.
    CHECK(f(0, zeros.data(), 32) == 0x8a9136aau);
    CHECK(f(0, ones.data(), 32) == 0x62a8ab43u);
    CHECK(f(0, up.data(), 32) == 0x46dd794eu);
    CHECK(f(0, down.data(), 32) == 0x113fdb5cu);
    CHECK(f(0, nullptr, 0) == 0);
    CHECK(f(0x12345678u, nullptr, 0) == 0x12345678u);
  }
}

TEST_CASE("crc32c__equals_definition_at_every_length_and_alignment", "[crc32c]") {
  auto bytes = random_bytes(2048 + 16, 1);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t size = 0; size <= 1024; size += offset == 0 ? 1 : 7) {
      uint32_t want = crc32c_bitwise(0, bytes.data() + offset, size);
      REQUIRE(crc32c(0, bytes.data() + offset, size) == want);
      REQUIRE(crc32c_portable(0, bytes.data() + offset, size) == want);
    }
  }
}

TEST_CASE("crc32c__equals_portable_around_round_sizes", "[crc32c]") {
  auto bytes = random_bytes(80000, 2);
  for (size_t near : {192u, 1472u, 8972u, 12288u, 24576u, 36864u, 65507u}) {
    for (size_t size = near - 26; size <= near + 26; ++size) {
      REQUIRE(crc32c(7, bytes.data() + 3, size) == crc32c_portable(7, bytes.data() + 3, size));
    }
  }
}

TEST_CASE("crc32c__continues_from_any_split", "[crc32c]") {
  auto bytes = random_bytes(3000, 3);
  uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (size_t split = 0; split <= bytes.size(); split += 13) {
    uint32_t crc = crc32c(0, bytes.data(), split);
    REQUIRE(crc32c(crc, bytes.data() + split, bytes.size() - split) == whole);
    REQUIRE(crc32c_portable(crc, bytes.data() + split, bytes.size() - split) == whole);
  }
}

TEST_CASE("crc32c__reads_nothing_beyond_the_end", "[crc32c]") {
  for (size_t size : {1u, 7u, 8u, 191u, 192u, 193u, 1000u}) {
    auto* exact = new unsigned char[size];  // AddressSanitizer sees the byte after it
    std::memset(exact, 0x5a, size);
    CHECK(crc32c(0, exact, size) == crc32c_bitwise(0, exact, size));
    delete[] exact;
  }
}

TEST_CASE("crc32c__sees_every_single_bit", "[crc32c]") {
  auto bytes = random_bytes(600, 4);
  uint32_t good = crc32c(0, bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    REQUIRE(crc32c(0, bytes.data(), bytes.size()) != good);
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
  }
}
