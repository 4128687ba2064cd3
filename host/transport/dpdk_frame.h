// Ethernet, IPv4, IPv6 and UDP as bytes: what a transport without a kernel below it must write and read itself. The frames
// are those that a UDP socket sends and receives, so one end may be a socket. dpdk_neighbour.h has ARP and its like.
//
// Pure: any bytes may be parsed, nothing is kept. IPv4 headers are checked by their checksum; UDP checksums are not looked
// at, since a kernel on the same machine leaves them unfinished and the packet's own CRC-32C covers more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gatun {

struct Mac {
  std::array<std::byte, 6> bytes{};
  bool operator==(const Mac&) const = default;
  std::string text() const;  // "02:67:0a:09:00:02"
};
bool parse_mac(std::string_view text, Mac* mac);

struct Ip {
  bool six = false;
  std::array<std::byte, 16> bytes{};  // IPv4: the first four, zeros behind
  bool operator==(const Ip&) const = default;
  size_t size() const { return six ? 16 : 4; }
  std::string text() const;
};
bool parse_ip(std::string_view text, Ip* ip);
bool in_prefix(const Ip& ip, const Ip& prefix, uint32_t prefix_bits);

struct FrameAddress {
  Mac mac;
  Ip ip;
  uint16_t port = 0;
};

inline constexpr uint16_t kEtherTypeIp4 = 0x0800, kEtherTypeIp6 = 0x86dd, kEtherTypeArp = 0x0806;
inline constexpr uint32_t kEthernetBytes = 14, kUdpBytes = 8, kIp4Bytes = 20, kIp6Bytes = 40;
inline constexpr uint32_t kFrameHeaderBytesMax = kEthernetBytes + kIp6Bytes + kUdpBytes;
constexpr uint32_t frame_header_bytes(bool six) {
  return kEthernetBytes + (six ? kIp6Bytes : kIp4Bytes) + kUdpBytes;
}
// Largest payload behind Gatun's header at this MTU, a multiple of 64.
uint32_t frame_payload_bytes_max(uint32_t mtu, bool six);

// The headers of every packet from one place to another: made once, written with a length each time. ECN-capable, never
// fragmented, UDP checksum zero.
class FrameHeader {
 public:
  FrameHeader() = default;
  FrameHeader(const FrameAddress& from, const FrameAddress& to);

  bool six() const { return six_; }
  uint32_t size() const { return frame_header_bytes(six_); }
  // out: size() bytes. udp_payload_bytes: what follows them.
  void write(uint32_t udp_payload_bytes, std::byte* out) const;
  void set_target(const Mac& mac);

 private:
  bool six_ = false;
  uint32_t ip4_sum_ = 0;  // of the IPv4 header without its length
  std::array<std::byte, kFrameHeaderBytesMax> bytes_{};
};

// The internet checksum (RFC 1071) in parts: every part but the last has an even number of bytes.
uint64_t checksum_add(uint64_t sum, std::span<const std::byte> bytes);
uint16_t checksum_fold(uint64_t sum);  // as the header holds it; zero stands for 0xffff
// The sum that the UDP checksum begins with, over the pseudo-header and UDP header of a written frame header.
uint64_t udp_checksum_start(const std::byte* frame_header, bool six);
// The pseudo-header's sum alone, not inverted: what a device wants to find in the field when it does the rest.
uint16_t udp_checksum_for_device(const std::byte* frame_header, bool six);
void set_udp_checksum(std::byte* frame_header, bool six, uint16_t checksum);

enum class FrameKind : uint8_t {
  kUdp,
  kNeighbour,  // a question for an address or an answer to one
  kOther,      // of no use here
  kCut,        // shorter than its IP header says: longer than the device's buffers, or damaged
  kBad,        // its IPv4 header's checksum is wrong
};

// What a frame says. Views into it, valid as long as its bytes.
struct Frame {
  FrameKind kind = FrameKind::kOther;
  bool congested = false;  // ECN says CE
  bool question = false;   // kNeighbour: who has target_ip? Else: source_ip is at source_mac
  uint16_t source_port = 0, target_port = 0;
  Mac source_mac, target_mac;
  Ip source_ip, target_ip;
  const std::byte* payload = nullptr;  // of the UDP packet
  uint32_t payload_bytes = 0;
};
Frame parse_frame(std::span<const std::byte> bytes);

}  // namespace gatun
