#include "protocols/wire.h"

#include "protocols/big_endian.h"
#include "protocols/mutation.h"

namespace gatun {
namespace {

// Byte offsets of the header's fields; PROTOCOL.md has the same table.
enum : size_t {
  kAtVersionType = 0,
  kAtFlags = 1,
  kAtTree = 2,
  kAtChild = 3,
  kAtJob = 4,
  kAtSeq = 8,
  kAtContract = 12,
  kAtOp = 16,
  kAtContributors = 18,
  kAtElems = 20,
  kAtFormat = 23,
  kAtRootUs = 24,
  kAtChecksum = 28,
};
static_assert(kAtChecksum + 4 == kHeaderBytes);

inline constexpr uint32_t kTreesWireMax = 16;
inline constexpr uint32_t kChildrenWireMax = 64;

uint32_t checksum_of(const std::byte* head, const std::byte* payload, uint32_t payload_bytes) {
  return crc32c(crc32c(0, head, kAtChecksum), payload, payload_bytes);
}

// What the payload's length must be, given the header.
bool payload_fits(const Header& header, uint32_t payload_bytes) {
  switch (header.type) {
    case PacketType::kData:
    case PacketType::kResult: {
      if (header.flags & (kFlagEmpty | kFlagRefused)) return payload_bytes == 0;
      const Type type = header.flags & kFlagPartial ? partial_type(header.elem_type) : header.elem_type;
      return header.elems > 0 && payload_bytes == uint64_t{header.elems} * elem_bytes(type);
    }
    case PacketType::kStatus: return payload_bytes >= 2 && payload_bytes % 2 == 0;
    case PacketType::kProbe:
    case PacketType::kProbeReply: return payload_bytes >= 8;
  }
  return false;
}

}  // namespace

const char* name(Decode reason) {
  switch (reason) {
    case Decode::kOk: return "ok";
    case Decode::kShort: return "shorter than a header";
    case Decode::kVersion: return "another protocol version";
    case Decode::kType: return "unknown packet type";
    case Decode::kFields: return "fields that cannot be";
    case Decode::kChecksum: return "checksum";
  }
  return "unknown";
}

Decode decode(const std::byte* head, const std::byte* payload, uint32_t payload_bytes, bool verify, Header* header) {
  const auto version_type = std::to_integer<uint8_t>(head[kAtVersionType]);
  if (version_type >> 4 != kWireVersion) return Decode::kVersion;
  const unsigned type = version_type & 0x0f;
  if (type < static_cast<unsigned>(PacketType::kData) || type > static_cast<unsigned>(PacketType::kProbeReply)) {
    return Decode::kType;
  }
  const auto format = std::to_integer<uint8_t>(head[kAtFormat]);
  Header h;
  h.type = static_cast<PacketType>(type);
  h.flags = std::to_integer<uint8_t>(head[kAtFlags]);
  h.tree = std::to_integer<uint8_t>(head[kAtTree]);
  h.child = std::to_integer<uint8_t>(head[kAtChild]);
  if (h.flags & ~kFlagsKnown || h.tree >= kTreesWireMax || h.child >= kChildrenWireMax || !valid_type(format >> 4) ||
      !valid_op(format & 0x0f)) {
    return Decode::kFields;
  }
  h.job = take32(head + kAtJob);
  h.seq = take32(head + kAtSeq);
  h.contract = take32(head + kAtContract);
  h.op = take16(head + kAtOp);
  h.contributors = take16(head + kAtContributors);
  h.elems = take32(head + kAtElems) >> 8;
  h.elem_type = static_cast<Type>(format >> 4);
  h.reduce_op = static_cast<Op>(format & 0x0f);
  h.root_us = take32(head + kAtRootUs);
  if (!payload_fits(h, payload_bytes)) return Decode::kFields;
  if (mutated(Mutation::kNoChecksum)) verify = false;
  if (verify && checksum_of(head, payload, payload_bytes) != take32(head + kAtChecksum)) return Decode::kChecksum;
  *header = h;
  return Decode::kOk;
}

void encode(const Header& header, const std::byte* payload, uint32_t payload_bytes, bool checksum, std::byte* head) {
  head[kAtVersionType] = std::byte(kWireVersion << 4 | static_cast<unsigned>(header.type));
  head[kAtFlags] = std::byte(header.flags);
  head[kAtTree] = std::byte(header.tree);
  head[kAtChild] = std::byte(header.child);
  put32(head + kAtJob, header.job);
  put32(head + kAtSeq, header.seq);
  put32(head + kAtContract, header.contract);
  put16(head + kAtOp, header.op);
  put16(head + kAtContributors, header.contributors);
  const unsigned format = static_cast<unsigned>(header.elem_type) << 4 | static_cast<unsigned>(header.reduce_op);
  put32(head + kAtElems, header.elems << 8 | format);
  put32(head + kAtRootUs, header.root_us);
  put32(head + kAtChecksum, checksum ? checksum_of(head, payload, payload_bytes) : 0);
}

bool has_checksum(const std::byte* head) {
  return take32(head + kAtChecksum) != 0;
}

}  // namespace gatun
