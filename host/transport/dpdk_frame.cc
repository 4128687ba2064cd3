#include "host/transport/dpdk_frame.h"

#include <arpa/inet.h>

#include <cstdio>
#include <cstring>

#include "host/transport/dpdk_neighbour.h"
#include "protocols/big_endian.h"
#include "protocols/packet.h"

namespace gatun {
namespace {

constexpr uint8_t kUdp = 17, kIcmp6 = 58;
constexpr uint8_t kEct0 = 2, kCongestionExperienced = 3, kEcnMask = 3;  // RFC 3168
constexpr uint8_t kHops = 64;
constexpr uint16_t kDontFragment = 0x4000, kFragmentMask = 0x3fff;  // the mask: more fragments, and the offset
constexpr uint32_t kIp4LengthAt = kEthernetBytes + 2, kIp4SumAt = kEthernetBytes + 10, kIp6LengthAt = kEthernetBytes + 4;

Ip take_ip(const std::byte* at, bool six) {
  Ip ip{.six = six};
  std::memcpy(ip.bytes.data(), at, ip.size());
  return ip;
}

uint16_t fold(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

uint64_t pseudo_sum(const std::byte* header, bool six) {
  const std::byte* udp = header + frame_header_bytes(six) - kUdpBytes;
  const std::span<const std::byte> addresses =
      six ? std::span(header + kEthernetBytes + 8, 32) : std::span(header + kEthernetBytes + 12, 8);
  return checksum_add(uint64_t{kUdp} + take16(udp + 4), addresses);
}

void parse_udp(std::span<const std::byte> bytes, Frame* frame) {
  const uint32_t udp_bytes = bytes.size() < kUdpBytes ? 0 : take16(bytes.data() + 4);
  if (udp_bytes < kUdpBytes || udp_bytes > bytes.size()) return;
  frame->kind = FrameKind::kUdp;
  frame->source_port = take16(bytes.data());
  frame->target_port = take16(bytes.data() + 2);
  frame->payload = bytes.data() + kUdpBytes;
  frame->payload_bytes = udp_bytes - kUdpBytes;
}

void parse_ip4(std::span<const std::byte> bytes, Frame* frame) {
  if (bytes.size() < kIp4Bytes) return;
  const uint32_t header_bytes = (std::to_integer<uint32_t>(bytes[0]) & 15) * 4;
  const uint32_t total_bytes = take16(bytes.data() + 2);
  if (std::to_integer<uint8_t>(bytes[0]) >> 4 != 4 || header_bytes < kIp4Bytes || header_bytes > bytes.size() ||
      total_bytes < header_bytes) {
    return;
  }
  if (fold(checksum_add(0, bytes.first(header_bytes))) != 0xffff) {
    frame->kind = FrameKind::kBad;
    return;
  }
  if (std::to_integer<uint8_t>(bytes[9]) != kUdp || (take16(bytes.data() + 6) & kFragmentMask) != 0) return;
  frame->source_ip = take_ip(bytes.data() + 12, false);
  frame->target_ip = take_ip(bytes.data() + 16, false);
  frame->congested = (std::to_integer<uint8_t>(bytes[1]) & kEcnMask) == kCongestionExperienced;
  if (total_bytes > bytes.size()) {
    frame->kind = FrameKind::kCut;
    return;
  }
  parse_udp(bytes.subspan(header_bytes, total_bytes - header_bytes), frame);  // behind it Ethernet may pad
}

// Headers between IPv6's and UDP's are not followed: nobody sends Gatun's packets with any.
void parse_ip6(std::span<const std::byte> bytes, Frame* frame) {
  if (bytes.size() < kIp6Bytes || std::to_integer<uint8_t>(bytes[0]) >> 4 != 6) return;
  const uint32_t body_bytes = take16(bytes.data() + 4);
  const uint8_t protocol = std::to_integer<uint8_t>(bytes[6]);
  if (protocol != kUdp && protocol != kIcmp6) return;
  frame->source_ip = take_ip(bytes.data() + 8, true);
  frame->target_ip = take_ip(bytes.data() + 24, true);
  frame->congested = (take16(bytes.data()) >> 4 & kEcnMask) == kCongestionExperienced;
  if (body_bytes + kIp6Bytes > bytes.size()) {
    frame->kind = FrameKind::kCut;
    return;
  }
  const std::span<const std::byte> body = bytes.subspan(kIp6Bytes, body_bytes);
  if (protocol == kUdp) return parse_udp(body, frame);
  // RFC 4861: only a packet that no router has passed on, with all its hops left, is believed.
  if (std::to_integer<uint8_t>(bytes[7]) == 255) parse_discovery(body, frame);
}

}  // namespace

std::string Mac::text() const {
  char text[18];
  const auto at = [this](size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", at(0), at(1), at(2), at(3), at(4), at(5));
  return text;
}

bool parse_mac(std::string_view text, Mac* mac) {
  unsigned parts[6];
  int end = 0;
  const std::string copy(text);
  if (copy.size() != 17 ||
      std::sscanf(copy.c_str(), "%2x:%2x:%2x:%2x:%2x:%2x%n", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                  &parts[5], &end) != 6 ||
      end != 17) {
    return false;
  }
  for (size_t i = 0; i < 6; ++i) mac->bytes[i] = static_cast<std::byte>(parts[i]);
  return true;
}

std::string Ip::text() const {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(six ? AF_INET6 : AF_INET, bytes.data(), text, sizeof text);
  return text;
}

bool parse_ip(std::string_view text, Ip* ip) {
  Ip parsed{.six = text.find(':') != text.npos};
  if (::inet_pton(parsed.six ? AF_INET6 : AF_INET, std::string(text).c_str(), parsed.bytes.data()) != 1) return false;
  *ip = parsed;
  return true;
}

bool in_prefix(const Ip& ip, const Ip& prefix, uint32_t prefix_bits) {
  if (ip.six != prefix.six) return false;
  for (uint32_t bit = 0; bit < prefix_bits; bit += 8) {
    const std::byte mask = prefix_bits - bit >= 8 ? std::byte{0xff} : std::byte(0xff << (8 - (prefix_bits - bit)));
    if ((ip.bytes[bit / 8] & mask) != (prefix.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

uint32_t frame_payload_bytes_max(uint32_t mtu, bool six) {
  const uint32_t overhead = frame_header_bytes(six) - kEthernetBytes + static_cast<uint32_t>(kHeaderBytes);
  return mtu > overhead ? (mtu - overhead) / 64 * 64 : 0;
}

FrameHeader::FrameHeader(const FrameAddress& from, const FrameAddress& to) : six_(from.ip.six) {
  std::byte* at = bytes_.data();
  std::memcpy(at, to.mac.bytes.data(), 6);
  std::memcpy(at + 6, from.mac.bytes.data(), 6);
  put16(at + 12, six_ ? kEtherTypeIp6 : kEtherTypeIp4);
  at += kEthernetBytes;
  if (six_) {
    put32(at, 6u << 28 | uint32_t{kEct0} << 20);
    at[6] = std::byte{kUdp};
    at[7] = std::byte{kHops};
    std::memcpy(at + 8, from.ip.bytes.data(), 16);
    std::memcpy(at + 24, to.ip.bytes.data(), 16);
  } else {
    at[0] = std::byte{0x45};
    at[1] = std::byte{kEct0};
    put16(at + 6, kDontFragment);
    at[8] = std::byte{kHops};
    at[9] = std::byte{kUdp};
    std::memcpy(at + 12, from.ip.bytes.data(), 4);
    std::memcpy(at + 16, to.ip.bytes.data(), 4);
    ip4_sum_ = fold(checksum_add(0, {at, kIp4Bytes}));
  }
  at += six_ ? kIp6Bytes : kIp4Bytes;
  put16(at, from.port);
  put16(at + 2, to.port);
}

void FrameHeader::write(uint32_t udp_payload_bytes, std::byte* out) const {
  std::memcpy(out, bytes_.data(), size());
  const auto udp_bytes = static_cast<uint16_t>(udp_payload_bytes + kUdpBytes);
  put16(out + size() - 4, udp_bytes);
  if (six_) {
    put16(out + kIp6LengthAt, udp_bytes);
    return;
  }
  const auto total_bytes = static_cast<uint16_t>(udp_bytes + kIp4Bytes);
  put16(out + kIp4LengthAt, total_bytes);
  put16(out + kIp4SumAt, static_cast<uint16_t>(~fold(uint64_t{ip4_sum_} + total_bytes)));
}

void FrameHeader::set_target(const Mac& mac) {
  std::memcpy(bytes_.data(), mac.bytes.data(), 6);
}

uint64_t checksum_add(uint64_t sum, std::span<const std::byte> bytes) {
  // Whole words in the host's order give the sum with its bytes swapped (RFC 1071, 2B).
  uint64_t swapped = 0;
  size_t at = 0;
  for (; at + 4 <= bytes.size(); at += 4) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + at, 4);
    swapped += word;
  }
  if (at + 2 <= bytes.size()) {
    uint16_t word;
    std::memcpy(&word, bytes.data() + at, 2);
    swapped += word;
    at += 2;
  }
  sum += ntohs(fold(swapped));
  if (at < bytes.size()) sum += std::to_integer<uint64_t>(bytes[at]) << 8;
  return sum;
}

uint16_t checksum_fold(uint64_t sum) {
  const auto folded = static_cast<uint16_t>(~fold(sum));
  return folded == 0 ? 0xffff : folded;
}

uint64_t udp_checksum_start(const std::byte* frame_header, bool six) {
  return checksum_add(pseudo_sum(frame_header, six), {frame_header + frame_header_bytes(six) - kUdpBytes, kUdpBytes});
}

uint16_t udp_checksum_for_device(const std::byte* frame_header, bool six) {
  return fold(pseudo_sum(frame_header, six));
}

void set_udp_checksum(std::byte* frame_header, bool six, uint16_t checksum) {
  put16(frame_header + frame_header_bytes(six) - 2, checksum);
}

Frame parse_frame(std::span<const std::byte> bytes) {
  Frame frame;
  if (bytes.size() < kEthernetBytes) return frame;
  std::memcpy(frame.target_mac.bytes.data(), bytes.data(), 6);
  std::memcpy(frame.source_mac.bytes.data(), bytes.data() + 6, 6);
  const std::span<const std::byte> rest = bytes.subspan(kEthernetBytes);
  switch (take16(bytes.data() + 12)) {
    case kEtherTypeIp4: parse_ip4(rest, &frame); break;
    case kEtherTypeIp6: parse_ip6(rest, &frame); break;
    case kEtherTypeArp: parse_arp(rest, &frame); break;
    default: break;
  }
  return frame;
}

}  // namespace gatun
