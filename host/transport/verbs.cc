#include "host/transport/verbs.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "host/base/module.h"
#include "protocols/fields.h"

namespace gatun {
namespace {

constexpr uint8_t kCardVersion = 1;
constexpr char kHex[] = "0123456789abcdef";

std::string to_hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += kHex[std::to_integer<unsigned>(byte) >> 4];
    text += kHex[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// Empty if it is not pairs of small hexadecimal digits.
std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  if (text.size() % 2 != 0) return bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const char* high = std::find(kHex, kHex + 16, text[i]);
    const char* low = std::find(kHex, kHex + 16, text[i + 1]);
    if (high == kHex + 16 || low == kHex + 16) return {};
    bytes.push_back(static_cast<std::byte>((high - kHex) << 4 | (low - kHex)));
  }
  return bytes;
}

}  // namespace

VerbsGid gid_of(const Endpoint& address) {
  VerbsGid gid{};
  if (address.family() == AF_INET6) {
    std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr, 16);
  } else {
    gid[10] = gid[11] = 0xff;
    std::memcpy(gid.data() + 12, &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, 4);
  }
  return gid;
}

std::string gid_text(const VerbsGid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = std::memcmp(gid.data(), kMapped, sizeof kMapped) == 0;
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.data() + (v4 ? 12 : 0), text, sizeof text);
  return text;
}

std::string VerbsCard::encode() const {
  std::vector<std::byte> bytes;
  FieldWriter w(&bytes);
  w.u8(kCardVersion);
  for (const uint8_t byte : gid) w.u8(byte);
  for (const uint8_t byte : peer_gid) w.u8(byte);
  w.u32(queue_pair);
  w.u32(first_packet);
  w.u32(mtu_bytes);
  w.u64(memory);
  w.u32(key);
  w.u32(shape.payload_bytes);
  w.u32(shape.slots);
  w.u64(shape.tx_bytes);
  w.u64(shape.result_bytes);
  return to_hex(bytes);
}

Result<VerbsCard> VerbsCard::decode(const std::string& text) {
  const std::vector<std::byte> bytes = from_hex(text);
  FieldReader r(bytes);
  VerbsCard card;
  const uint8_t version = r.u8();
  for (uint8_t& byte : card.gid) byte = r.u8();
  for (uint8_t& byte : card.peer_gid) byte = r.u8();
  card.queue_pair = r.u32();
  card.first_packet = r.u32();
  card.mtu_bytes = r.u32();
  card.memory = r.u64();
  card.key = r.u32();
  card.shape.payload_bytes = r.u32();
  card.shape.slots = r.u32();
  card.shape.tx_bytes = r.u64();
  card.shape.result_bytes = r.u64();
  if (r.done() && version == kCardVersion && card.shape.valid()) return card;
  return Status(Code::kRefused, "the peer describes its RDMA queue pair in words of another version of Gatun");
}

Result<VerbsDevices> open_verbs() {
  const Result<const void*> loaded = load_module({.file = "libgatun_verbs.so",
                                                  .entry = kVerbsModuleEntry,
                                                  .what = "the verbs transport",
                                                  .needs = "RDMA (libibverbs-dev)"});
  if (!loaded.ok()) return loaded.status();
  const auto* module = static_cast<const VerbsModule*>(loaded.value());
  if (module->version == kVerbsModuleVersion) return module->open();
  return Status(Code::kUnsupported, "libgatun_verbs.so belongs to another version of Gatun");
}

Result<VerbsDevice*> find_verbs(const VerbsDevices& devices, const VerbsGid& gid) {
  std::string tables;
  for (const auto& device : devices) {
    if (device->has(gid)) return device.get();
    tables += (tables.empty() ? "" : "; ") + device->gid_table();
  }
  return Status(Code::kUnsupported, "no RDMA device here has the RoCE v2 address " + gid_text(gid) + ": " + tables +
                                        " (the address of the interface to the switch must be on an RDMA device)");
}

}  // namespace gatun
