#include "host/transport/dpdk_neighbour.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace gatun {
namespace {

struct Ends {
  Mac mac, other_mac;
  Ip ip, other_ip;
};

Ends ends(bool six) {
  Ends made;
  REQUIRE(parse_mac("02:00:00:00:00:01", &made.mac));
  REQUIRE(parse_mac("02:00:00:00:00:02", &made.other_mac));
  REQUIRE(parse_ip(six ? "fd00::1" : "10.0.0.1", &made.ip));
  REQUIRE(parse_ip(six ? "fd00::ab:cdef" : "10.0.0.2", &made.other_ip));
  return made;
}

TEST_CASE("write_question__is_read_as_one", "[transport]") {
  for (const bool six : {false, true}) {
    const Ends e = ends(six);
    std::vector<std::byte> bytes(kNeighbourBytesMax);
    bytes.resize(write_question(e.mac, e.ip, e.other_ip, bytes.data()));
    const Frame frame = parse_frame(bytes);
    REQUIRE(frame.kind == FrameKind::kNeighbour);
    REQUIRE(frame.question);
    REQUIRE(frame.source_mac == e.mac);
    REQUIRE(frame.source_ip == e.ip);
    REQUIRE(frame.target_ip == e.other_ip);
    REQUIRE(frame.target_mac.text() == (six ? "33:33:ff:ab:cd:ef" : "ff:ff:ff:ff:ff:ff"));
  }
}

TEST_CASE("write_answer__goes_to_who_asked", "[transport]") {
  for (const bool six : {false, true}) {
    const Ends e = ends(six);
    std::vector<std::byte> bytes(kNeighbourBytesMax);
    bytes.resize(write_answer(e.mac, e.ip, e.other_mac, e.other_ip, bytes.data()));
    const Frame frame = parse_frame(bytes);
    REQUIRE(frame.kind == FrameKind::kNeighbour);
    REQUIRE_FALSE(frame.question);
    REQUIRE(frame.target_mac == e.other_mac);
    REQUIRE(frame.source_mac == e.mac);
    REQUIRE(frame.source_ip == e.ip);
  }
}

TEST_CASE("parse_frame__damaged_questions_are_none", "[transport]") {
  for (const bool six : {false, true}) {
    const Ends e = ends(six);
    std::vector<std::byte> good(kNeighbourBytesMax);
    good.resize(write_question(e.mac, e.ip, e.other_ip, good.data()));
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      REQUIRE(parse_frame(std::span(good).first(bytes)).kind != FrameKind::kNeighbour);
    }
    if (!six) continue;
    for (size_t at = kEthernetBytes + 8; at < good.size(); ++at) {  // neighbour discovery has a checksum
      std::vector<std::byte> bad = good;
      bad[at] ^= std::byte{1};
      REQUIRE(parse_frame(bad).kind != FrameKind::kNeighbour);
    }
    std::vector<std::byte> routed = good;
    routed[kEthernetBytes + 7] = std::byte{254};
    REQUIRE(parse_frame(routed).kind != FrameKind::kNeighbour);
  }
}

}  // namespace
}  // namespace gatun
