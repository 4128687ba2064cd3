#include "protocols/wire.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

using namespace gatun;

namespace {

Header sample() {
  Header h;
  h.type = PacketType::kData;
  h.flags = kFlagCongested | kFlagRepeat;
  h.tree = 3;
  h.child = 5;
  h.job = 0x01020304;
  h.seq = 0xfffffffe;
  h.contract = 0xa1b2c3d4;
  h.op = 0x1122;
  h.contributors = 1;
  h.elems = 2;
  h.elem_type = Type::kF32;
  h.reduce_op = Op::kAvg;
  h.root_us = 0x55667788;
  return h;
}

const std::array<std::byte, 8> kPayload = {std::byte{0}, std::byte{0}, std::byte{0x80}, std::byte{0x3f},
                                           std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0xc0}};  // 1.0f, -2.0f

struct Wire {
  std::array<std::byte, kHeaderBytes> head{};
  std::vector<std::byte> payload;
  Decode decode(bool verify = true) const {
    Header h;
    return gatun::decode(head.data(), payload.data(), static_cast<uint32_t>(payload.size()), verify, &h);
  }
};

Wire make(const Header& header, size_t payload_bytes) {
  Wire wire;
  wire.payload.resize(payload_bytes);
  encode(header, wire.payload.data(), static_cast<uint32_t>(payload_bytes), true, wire.head.data());
  return wire;
}

}  // namespace

TEST_CASE("encode__golden_bytes", "[wire]") {
  // The same bytes stand in protocols/PROTOCOL.md.
  const std::array<unsigned char, kHeaderBytes> golden = {
      0x11, 0x11, 0x03, 0x05, 0x01, 0x02, 0x03, 0x04, 0xff, 0xff, 0xff, 0xfe, 0xa1, 0xb2, 0xc3, 0xd4,
      0x11, 0x22, 0x00, 0x01, 0x00, 0x00, 0x02, 0x74, 0x55, 0x66, 0x77, 0x88, 0x5f, 0x91, 0x15, 0xed};
  std::array<std::byte, kHeaderBytes> head;
  encode(sample(), kPayload.data(), kPayload.size(), true, head.data());
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    INFO("byte " << i);
    CHECK(std::to_integer<unsigned>(head[i]) == golden[i]);
  }
}

TEST_CASE("encode__without_checksum_writes_zero", "[wire]") {
  std::array<std::byte, kHeaderBytes> head;
  encode(sample(), kPayload.data(), kPayload.size(), false, head.data());
  for (size_t i = 28; i < 32; ++i) CHECK(head[i] == std::byte{0});
  Header h;
  CHECK(decode(head.data(), kPayload.data(), 8, false, &h) == Decode::kOk);
  CHECK(decode(head.data(), kPayload.data(), 8, true, &h) == Decode::kChecksum);
}

TEST_CASE("decode__round_trip", "[wire]") {
  std::array<std::byte, kHeaderBytes> head;
  encode(sample(), kPayload.data(), kPayload.size(), true, head.data());
  Header h;
  REQUIRE(decode(head.data(), kPayload.data(), 8, true, &h) == Decode::kOk);
  const Header s = sample();
  CHECK(h.type == s.type);
  CHECK(h.flags == s.flags);
  CHECK(h.tree == s.tree);
  CHECK(h.child == s.child);
  CHECK(h.job == s.job);
  CHECK(h.seq == s.seq);
  CHECK(h.contract == s.contract);
  CHECK(h.op == s.op);
  CHECK(h.contributors == s.contributors);
  CHECK(h.elems == s.elems);
  CHECK(h.elem_type == s.elem_type);
  CHECK(h.reduce_op == s.reduce_op);
  CHECK(h.root_us == s.root_us);
}

TEST_CASE("decode__every_flipped_bit_is_refused", "[wire]") {
  std::array<std::byte, kHeaderBytes + 8> packet;
  encode(sample(), kPayload.data(), kPayload.size(), true, packet.data());
  std::memcpy(packet.data() + kHeaderBytes, kPayload.data(), 8);
  for (size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto damaged = packet;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    Header h;
    INFO("bit " << bit);
    CHECK(decode(damaged.data(), damaged.data() + kHeaderBytes, 8, true, &h) != Decode::kOk);
  }
}

TEST_CASE("decode__payload_must_fit_the_header", "[wire]") {
  Header h = sample();
  CHECK(make(h, 8).decode() == Decode::kOk);
  CHECK(make(h, 4).decode() == Decode::kFields);
  CHECK(make(h, 12).decode() == Decode::kFields);
  CHECK(make(h, 0).decode() == Decode::kFields);
  h.flags = kFlagEmpty;
  CHECK(make(h, 0).decode() == Decode::kOk);
  CHECK(make(h, 8).decode() == Decode::kFields);
  h.flags = kFlagPartial;
  h.elem_type = Type::kBF16;
  CHECK(make(h, 8).decode() == Decode::kOk);  // two partial sums in f32
  h.flags = 0;
  CHECK(make(h, 4).decode() == Decode::kOk);
  h.elems = 0;
  CHECK(make(h, 0).decode() == Decode::kFields);
  h.type = PacketType::kStatus;
  CHECK(make(h, 2).decode() == Decode::kOk);
  CHECK(make(h, 3).decode() == Decode::kFields);
  CHECK(make(h, 0).decode() == Decode::kFields);
  h.type = PacketType::kProbe;
  CHECK(make(h, 8).decode() == Decode::kOk);
  CHECK(make(h, 7).decode() == Decode::kFields);
}

TEST_CASE("decode__fields_out_of_range", "[wire]") {
  Wire wire = make(sample(), 8);
  SECTION("version") {
    wire.head[0] = std::byte{0x21};
    CHECK(wire.decode(false) == Decode::kVersion);
  }
  SECTION("type") {
    wire.head[0] = GENERATE(std::byte{0x10}, std::byte{0x16}, std::byte{0x1f});
    CHECK(wire.decode(false) == Decode::kType);
  }
  SECTION("flags") {
    wire.head[1] = std::byte{0x20};
    CHECK(wire.decode(false) == Decode::kFields);
  }
  SECTION("tree") {
    wire.head[2] = std::byte{16};
    CHECK(wire.decode(false) == Decode::kFields);
  }
  SECTION("child") {
    wire.head[3] = std::byte{64};
    CHECK(wire.decode(false) == Decode::kFields);
  }
  SECTION("element type") {
    wire.head[23] = std::byte{0xc0};
    CHECK(wire.decode(false) == Decode::kFields);
  }
  SECTION("operator") {
    wire.head[23] = std::byte{0x75};
    CHECK(wire.decode(false) == Decode::kFields);
  }
}
