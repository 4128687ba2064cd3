#include "host/transport/dpdk_neighbour.h"

#include <algorithm>
#include <cstring>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

constexpr uint32_t kArpBytes = 28;
constexpr uint16_t kAsk = 1, kTell = 2;                         // ARP operations
constexpr uint32_t kArpFixed = 0x00010800, kArpSizes = 0x0604;  // Ethernet, IPv4, and the sizes of their addresses
constexpr uint8_t kSolicitation = 135, kAdvertisement = 136;
constexpr uint8_t kSourceOption = 1, kTargetOption = 2;
constexpr uint32_t kDiscoveryBytes = 24, kOptionBytes = 8;  // without options; the option with an Ethernet address
constexpr uint32_t kSolicitedOverride = 3u << 29;           // flags of an advertisement
constexpr uint8_t kIcmp6 = 58;
constexpr Mac kEverybody{
    {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}}};

std::byte* put_ethernet(const Mac& to, const Mac& from, uint16_t type, std::byte* out) {
  std::memcpy(out, to.bytes.data(), 6);
  std::memcpy(out + 6, from.bytes.data(), 6);
  put16(out + 12, type);
  return out + kEthernetBytes;
}

uint32_t write_arp(uint16_t operation, const Mac& from_mac, const Ip& from_ip, const Mac& to_mac, const Ip& to_ip,
                   std::byte* out) {
  std::byte* at = put_ethernet(to_mac, from_mac, kEtherTypeArp, out);
  put32(at, kArpFixed);
  put16(at + 4, kArpSizes);
  put16(at + 6, operation);
  std::memcpy(at + 8, from_mac.bytes.data(), 6);
  std::memcpy(at + 14, from_ip.bytes.data(), 4);
  if (operation == kAsk) {
    std::memset(at + 18, 0, 6);
  } else {
    std::memcpy(at + 18, to_mac.bytes.data(), 6);
  }
  std::memcpy(at + 24, to_ip.bytes.data(), 4);
  return kEthernetBytes + kArpBytes;
}

struct Discovery {
  uint8_t type;
  uint32_t flags;
  Mac to_mac;
  Ip to_ip;
  Ip subject;  // the address that it is about
};

uint32_t write_discovery(const Mac& from_mac, const Ip& from_ip, const Discovery& what, std::byte* out) {
  constexpr uint32_t kBody = kDiscoveryBytes + kOptionBytes;
  std::byte* ip = put_ethernet(what.to_mac, from_mac, kEtherTypeIp6, out);
  put32(ip, 6u << 28);
  put16(ip + 4, kBody);
  ip[6] = std::byte{kIcmp6};
  ip[7] = std::byte{255};
  std::memcpy(ip + 8, from_ip.bytes.data(), 16);
  std::memcpy(ip + 24, what.to_ip.bytes.data(), 16);
  std::byte* body = ip + kIp6Bytes;
  std::memset(body, 0, kBody);
  body[0] = std::byte{what.type};
  put32(body + 4, what.flags);
  std::memcpy(body + 8, what.subject.bytes.data(), 16);
  body[24] = std::byte{what.type == kSolicitation ? kSourceOption : kTargetOption};
  body[25] = std::byte{1};  // of 8 bytes
  std::memcpy(body + 26, from_mac.bytes.data(), 6);
  uint64_t sum = checksum_add(uint64_t{kBody} + kIcmp6, {ip + 8, 32});
  sum = checksum_add(sum, {body, kBody});
  put16(body + 2, checksum_fold(sum));
  return kEthernetBytes + kIp6Bytes + kBody;
}

// The Ethernet address that an option of this type holds.
bool find_option(std::span<const std::byte> options, uint8_t type, Mac* mac) {
  while (options.size() >= kOptionBytes) {
    const size_t bytes = std::to_integer<size_t>(options[1]) * 8;
    if (bytes == 0 || bytes > options.size()) return false;
    if (std::to_integer<uint8_t>(options[0]) == type && bytes == kOptionBytes) {
      std::memcpy(mac->bytes.data(), options.data() + 2, 6);
      return true;
    }
    options = options.subspan(bytes);
  }
  return false;
}

}  // namespace

uint32_t write_question(const Mac& own_mac, const Ip& own_ip, const Ip& wanted, std::byte* out) {
  if (!wanted.six) return write_arp(kAsk, own_mac, own_ip, kEverybody, wanted, out);
  Ip group{.six = true};  // ff02::1:ff and the last three bytes (RFC 4291)
  group.bytes[0] = std::byte{0xff};
  group.bytes[1] = std::byte{2};
  group.bytes[11] = std::byte{1};
  group.bytes[12] = std::byte{0xff};
  std::copy(wanted.bytes.begin() + 13, wanted.bytes.end(), group.bytes.begin() + 13);
  return write_discovery(own_mac, own_ip, {kSolicitation, 0, question_group(wanted), group, wanted}, out);
}

uint32_t write_answer(const Mac& own_mac, const Ip& own_ip, const Mac& asker_mac, const Ip& asker_ip, std::byte* out) {
  if (!own_ip.six) return write_arp(kTell, own_mac, own_ip, asker_mac, asker_ip, out);
  return write_discovery(own_mac, own_ip, {kAdvertisement, kSolicitedOverride, asker_mac, asker_ip, own_ip}, out);
}

Mac question_group(const Ip& wanted) {
  return {{std::byte{0x33}, std::byte{0x33}, std::byte{0xff}, wanted.bytes[13], wanted.bytes[14], wanted.bytes[15]}};
}

void parse_arp(std::span<const std::byte> bytes, Frame* frame) {
  if (bytes.size() < kArpBytes || take32(bytes.data()) != kArpFixed || take16(bytes.data() + 4) != kArpSizes) return;
  const uint16_t operation = take16(bytes.data() + 6);
  if (operation != kAsk && operation != kTell) return;
  frame->kind = FrameKind::kNeighbour;
  frame->question = operation == kAsk;
  std::memcpy(frame->source_mac.bytes.data(), bytes.data() + 8, 6);
  std::memcpy(frame->source_ip.bytes.data(), bytes.data() + 14, 4);
  std::memcpy(frame->target_ip.bytes.data(), bytes.data() + 24, 4);
}

void parse_discovery(std::span<const std::byte> body, Frame* frame) {
  if (body.size() < kDiscoveryBytes) return;
  uint64_t sum = checksum_add(body.size() + kIcmp6, frame->source_ip.bytes);
  sum = checksum_add(sum, frame->target_ip.bytes);
  // A sum over a right checksum is all ones, which comes out inverted.
  if (checksum_fold(checksum_add(sum, body)) != 0xffff) return;
  const auto type = std::to_integer<uint8_t>(body[0]);
  const bool question = type == kSolicitation;
  if (!question && type != kAdvertisement) return;
  const std::span<const std::byte> options = body.subspan(kDiscoveryBytes);
  if (!find_option(options, question ? kSourceOption : kTargetOption, &frame->source_mac) && !question) return;
  frame->kind = FrameKind::kNeighbour;
  frame->question = question;
  Ip& subject = question ? frame->target_ip : frame->source_ip;
  std::memcpy(subject.bytes.data(), body.data() + 8, 16);
}

}  // namespace gatun
