#include "protocols/mesh_wire.h"

#include <catch2/catch.hpp>
#include <cstdio>

using namespace gatun;
using namespace gatun::mesh_wire;

namespace {

std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  char two[3];
  for (const std::byte byte : bytes) {
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(byte));
    text += two;
  }
  return text;
}

Contract contract() {
  return {.collective = Collective::kReduce, .type = Type::kF16, .op = Op::kMax, .root = 2, .count = 0x0102, .tag = 3};
}

std::vector<Message> samples() {
  Holdings holdings;
  holdings.next_op = 9;
  holdings.refused = {7};
  holdings.operations = {{8, 5, contract()}};
  holdings.trees = {{.next = {8, 1}, .ahead = {{8, 3}, {8, 4}}}, {.next = {9, 0}, .ahead = {}}};
  return {Announce{1, 2, contract(), 0x01020304}, Frozen{3, 0xa0b0c0d0, 6, "why", holdings}, Abort{"no", true}, Leave{5},
          KeepAlive{true}};
}

}  // namespace

TEST_CASE("mesh_wire_encode__golden_bytes", "[mesh_wire]") {
  const char* const golden[] = {
      "0201"
      "00000001" "00000002" "04" "06" "02" "00000002" "0000000000000102" "0000000000000003" "01020304",
      "0202"
      "00000003" "a0b0c0d0" "00000006" "0003776879"
      "00000009" "0001" "00000007"
      "0001" "00000008" "0000000000000005" "04" "06" "02" "00000002" "0000000000000102" "0000000000000003"
      "0002"
      "00000008" "0000000000000001" "0002" "00000008" "0000000000000003" "00000008" "0000000000000004"
      "00000009" "0000000000000000" "0000",
      "0203" "00026e6f" "01",
      "0204" "00000005",
      "0205" "01"};
  const auto messages = samples();
  REQUIRE(std::size(golden) == messages.size());
  for (size_t i = 0; i < messages.size(); ++i) CHECK(hex(encode(messages[i])) == golden[i]);
}

TEST_CASE("mesh_wire_decode__what_was_encoded", "[mesh_wire]") {
  for (const Message& message : samples()) {
    Message got;
    CHECK(decode(encode(message), &got) == "");
    CHECK(got == message);
  }
}

TEST_CASE("mesh_wire_decode__refuses_every_other_length", "[mesh_wire]") {
  for (const Message& message : samples()) {
    std::vector<std::byte> bytes = encode(message);
    Message got;
    for (size_t size = 0; size < bytes.size(); ++size) CHECK(decode(std::span(bytes).first(size), &got) != "");
    bytes.push_back(std::byte{0});
    CHECK(decode(bytes, &got) != "");
  }
}

TEST_CASE("mesh_wire_decode__refuses_garbage", "[mesh_wire]") {
  Message got;
  std::vector<std::byte> bytes = encode(Leave{1});
  bytes[0] = std::byte{3};
  CHECK(decode(bytes, &got).find("mesh version 3") == 0);
  bytes[0] = std::byte{2};
  for (const int type : {0, 6, 255}) {
    bytes[1] = std::byte(type);
    CHECK(decode(bytes, &got) != "");
  }
  // Every byte of every message set to every extreme: no crash, and what is accepted can be written again.
  for (const Message& message : samples()) {
    const std::vector<std::byte> whole = encode(message);
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const unsigned value : {0u, 0x7fu, 0x80u, 0xffu}) {
        std::vector<std::byte> bad = whole;
        bad[at] = std::byte(value);
        if (decode(bad, &got) == "") CHECK(encode(got).size() == bad.size());
      }
    }
  }
}
