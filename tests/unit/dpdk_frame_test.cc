#include "host/transport/dpdk_frame.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

Ip ip_of(const std::string& text) {
  Ip ip;
  REQUIRE(parse_ip(text, &ip));
  return ip;
}

Mac mac_of(const std::string& text) {
  Mac mac;
  REQUIRE(parse_mac(text, &mac));
  return mac;
}

FrameAddress place(const std::string& ip, uint16_t port, const std::string& mac) {
  return {mac_of(mac), ip_of(ip), port};
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes.push_back(std::byte(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<std::byte> make_frame(bool six, uint32_t payload_bytes) {
  const FrameHeader header(place(six ? "fd00::1" : "10.0.0.1", 7117, "02:00:00:00:00:01"),
                           place(six ? "fd00::2" : "10.0.0.2", 50000, "02:00:00:00:00:02"));
  std::vector<std::byte> frame(header.size() + payload_bytes);
  header.write(payload_bytes, frame.data());
  for (uint32_t i = 0; i < payload_bytes; ++i) frame[header.size() + i] = std::byte(i * 7 + 1);
  return frame;
}

TEST_CASE("parse_ip__both_families_and_nonsense", "[transport]") {
  Ip ip;
  REQUIRE(parse_ip("10.1.2.3", &ip));
  REQUIRE_FALSE(ip.six);
  REQUIRE(ip.text() == "10.1.2.3");
  REQUIRE(parse_ip("fd00::7", &ip));
  REQUIRE(ip.six);
  REQUIRE(ip.text() == "fd00::7");
  for (const char* text : {"", "10.1.2", "10.1.2.256", "host", "fd00::g", "10.1.2.3 "}) REQUIRE_FALSE(parse_ip(text, &ip));
  REQUIRE(ip.text() == "fd00::7");
}

TEST_CASE("parse_mac__six_pairs_and_nothing_else", "[transport]") {
  Mac mac;
  REQUIRE(parse_mac("02:67:0a:FF:00:02", &mac));
  REQUIRE(mac.text() == "02:67:0a:ff:00:02");
  for (const char* text : {"", "02:67:0a:ff:00", "02:67:0a:ff:00:0g", "02-67-0a-ff-00-02", "2:67:0a:ff:00:022"}) {
    REQUIRE_FALSE(parse_mac(text, &mac));
  }
}

TEST_CASE("in_prefix__whole_and_part_bytes", "[transport]") {
  REQUIRE(in_prefix(ip_of("10.0.0.200"), ip_of("10.0.0.1"), 24));
  REQUIRE_FALSE(in_prefix(ip_of("10.0.1.1"), ip_of("10.0.0.1"), 24));
  REQUIRE(in_prefix(ip_of("10.0.1.1"), ip_of("10.0.0.1"), 23));
  REQUIRE_FALSE(in_prefix(ip_of("10.0.2.1"), ip_of("10.0.0.1"), 23));
  REQUIRE_FALSE(in_prefix(ip_of("10.0.0.2"), ip_of("10.0.0.1"), 32));
  REQUIRE(in_prefix(ip_of("fd00::ffff"), ip_of("fd00::1"), 64));
  REQUIRE_FALSE(in_prefix(ip_of("fd00::1"), ip_of("10.0.0.1"), 1));
}

TEST_CASE("frame_payload_bytes_max__is_a_multiple_of_64", "[transport]") {
  REQUIRE(frame_payload_bytes_max(1500, false) == 1408);
  REQUIRE(frame_payload_bytes_max(1500, true) == 1408);
  REQUIRE(frame_payload_bytes_max(9000, false) == 8896);
  REQUIRE(frame_payload_bytes_max(60, false) == 0);
}

// Worked out by hand from RFC 791 and RFC 768.
TEST_CASE("FrameHeader__golden_bytes", "[transport]") {
  const std::vector<std::byte> four = make_frame(false, 4);
  REQUIRE(std::vector(four.begin(), four.begin() + 42) == bytes_of("020000000002020000000001"
                                                                   "0800"
                                                                   "45020020"
                                                                   "00004000"
                                                                   "401126c9"
                                                                   "0a000001"
                                                                   "0a000002"
                                                                   "1bcdc350"
                                                                   "000c0000"));
  const std::vector<std::byte> six = make_frame(true, 4);
  REQUIRE(std::vector(six.begin(), six.begin() + 62) == bytes_of("020000000002020000000001"
                                                                 "86dd"
                                                                 "60200000"
                                                                 "000c1140"
                                                                 "fd000000000000000000000000000001"
                                                                 "fd000000000000000000000000000002"
                                                                 "1bcdc350"
                                                                 "000c0000"));
}

TEST_CASE("FrameHeader__what_is_written_is_read", "[transport]") {
  for (const bool six : {false, true}) {
    for (const uint32_t bytes : {0u, 1u, 32u, 1440u, 8900u}) {
      std::vector<std::byte> made = make_frame(six, bytes);
      made.resize(std::max<size_t>(made.size(), 60));  // as Ethernet pads
      const Frame frame = parse_frame(made);
      REQUIRE(frame.kind == FrameKind::kUdp);
      REQUIRE(frame.payload_bytes == bytes);
      REQUIRE(frame.payload == made.data() + frame_header_bytes(six));
      REQUIRE(frame.source_ip == ip_of(six ? "fd00::1" : "10.0.0.1"));
      REQUIRE(frame.target_ip == ip_of(six ? "fd00::2" : "10.0.0.2"));
      REQUIRE(frame.source_port == 7117);
      REQUIRE(frame.target_port == 50000);
      REQUIRE(frame.source_mac == mac_of("02:00:00:00:00:01"));
      REQUIRE(frame.target_mac == mac_of("02:00:00:00:00:02"));
      REQUIRE_FALSE(frame.congested);
    }
  }
}

TEST_CASE("checksum_add__parts_and_odd_ends", "[transport]") {
  // RFC 1071's own example.
  const std::vector<std::byte> bytes = bytes_of("0001f203f4f5f6f7");
  REQUIRE(checksum_fold(checksum_add(0, bytes)) == static_cast<uint16_t>(~0xddf2));
  const std::vector<std::byte> odd = bytes_of("0001f203f4f5f6f7ab");
  const uint64_t in_parts = checksum_add(checksum_add(0, std::span(odd).first(2)), std::span(odd).subspan(2));
  REQUIRE(checksum_fold(in_parts) == checksum_fold(checksum_add(0, odd)));
  REQUIRE(checksum_fold(checksum_add(0, odd)) == static_cast<uint16_t>(~(0xddf2 + 0xab00 - 0xffff)));
}

TEST_CASE("set_udp_checksum__sums_to_all_ones", "[transport]") {
  for (const bool six : {false, true}) {
    for (const uint32_t bytes : {0u, 33u, 1440u}) {
      std::vector<std::byte> frame = make_frame(six, bytes);
      const uint32_t heads = frame_header_bytes(six);
      const std::span<const std::byte> payload = std::span(frame).subspan(heads);
      set_udp_checksum(frame.data(), six, checksum_fold(checksum_add(udp_checksum_start(frame.data(), six), payload)));
      // The receiver adds it all up, the checksum with it.
      REQUIRE(checksum_fold(checksum_add(udp_checksum_start(frame.data(), six), payload)) == 0xffff);
    }
  }
}

TEST_CASE("parse_frame__congestion_marks", "[transport]") {
  std::vector<std::byte> four = make_frame(false, 40);
  four[15] = std::byte{3};  // the sum grows by one, so its complement shrinks by one
  put16(four.data() + 24, static_cast<uint16_t>(take16(four.data() + 24) - 1));
  REQUIRE(parse_frame(four).congested);
  std::vector<std::byte> six = make_frame(true, 40);
  six[15] = std::byte{0x30};
  REQUIRE(parse_frame(six).congested);
}

TEST_CASE("parse_frame__damaged_cut_and_foreign", "[transport]") {
  for (const bool six : {false, true}) {
    const std::vector<std::byte> good = make_frame(six, 100);
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      const Frame frame = parse_frame(std::span(good).first(bytes));
      REQUIRE(frame.kind != FrameKind::kUdp);
      if (bytes >= frame_header_bytes(six)) REQUIRE(frame.kind == FrameKind::kCut);
    }
    for (size_t at = 0; at < good.size(); ++at) {
      std::vector<std::byte> bad = good;
      bad[at] ^= std::byte{0xff};
      const Frame frame = parse_frame(bad);
      if (frame.kind != FrameKind::kUdp) continue;
      REQUIRE(frame.payload + frame.payload_bytes <= bad.data() + bad.size());
      if (!six) REQUIRE((at < kEthernetBytes || at >= kEthernetBytes + kIp4Bytes));  // the header's checksum saw it
    }
  }
  std::vector<std::byte> fragment = make_frame(false, 100);
  fragment[20] = std::byte{0x20};
  put16(fragment.data() + 24, 0);
  put16(fragment.data() + 24, static_cast<uint16_t>(~0));
  REQUIRE(parse_frame(fragment).kind == FrameKind::kBad);
}

}  // namespace
}  // namespace gatun
