// The wire format of the data path: one header of 32 bytes, big-endian, then the payload. PROTOCOL.md is its document.
//
// decode() accepts any bytes and says why it refuses them; encode() writes every byte. Payload elements travel in
// little-endian order, as all supported hosts keep them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocols/packet.h"
#include "protocols/types.h"

namespace gatun {

inline constexpr uint8_t kWireVersion = 1;

enum class PacketType : uint8_t {
  kData = 1,        // child to parent: a contribution
  kResult = 2,      // parent to children: the answer to a chunk, which acknowledges it
  kStatus = 3,      // parent to child: your contribution is here, these ranks' are missing (payload: u16 count, u16 ranks)
  kProbe = 4,       // child to parent: prove the data path (payload: u64 token, then padding to full size)
  kProbeReply = 5,  // parent to child: the same bytes back
};

// Flags.
inline constexpr uint8_t kFlagCongested = 1 << 0;  // some queue on the way was over its threshold
inline constexpr uint8_t kFlagEmpty = 1 << 1;      // a contribution that adds nothing (broadcast: not the root)
inline constexpr uint8_t kFlagPartial = 1 << 2;    // payload is of partial_type(type), from a switch
inline constexpr uint8_t kFlagRefused = 1 << 3;    // the contributions disagree; op is the lowest operation among them
inline constexpr uint8_t kFlagRepeat = 1 << 4;     // sent before; for counters only, nothing is decided by it
inline constexpr uint8_t kFlagsKnown = 0x1f;

struct Header {
  PacketType type = PacketType::kData;
  uint8_t flags = 0;
  uint8_t tree = 0;
  uint8_t child = 0;          // index of the child at its parent; in kResult always 0, so that all children get one packet
  uint32_t job = 0;           // handle of (job, epoch), unguessable
  uint32_t seq = 0;           // chunk number on this tree
  uint32_t contract = 0;      // fingerprint of the operation
  uint16_t op = 0;            // operation number, low 16 bits
  uint16_t contributors = 0;  // ranks whose contributions are in the payload
  uint32_t elems = 0;         // 24 bits
  Type elem_type = Type::kU8;
  Op reduce_op = Op::kSum;
  uint32_t root_us = 0;       // the root's clock when the chunk completed
};
inline constexpr uint32_t kElemsMax = (1u << 24) - 1;

enum class Decode : uint8_t { kOk, kShort, kVersion, kType, kFields, kChecksum };
const char* name(Decode reason);

// Reads and checks a header. With verify, the checksum over header and payload must be right.
Decode decode(const std::byte* head, const std::byte* payload, uint32_t payload_bytes, bool verify, Header* header);

// Writes the header; with checksum also the CRC-32C over header and payload, else a zero.
void encode(const Header& header, const std::byte* payload, uint32_t payload_bytes, bool checksum, std::byte* head);

// Was this header written with a checksum? (One in 2^32 of them is zero.)
bool has_checksum(const std::byte* head);

// CRC-32C (Castagnoli, RFC 3720), continued from a previous value; start with 0.
uint32_t crc32c(uint32_t crc, const void* bytes, size_t size);
uint32_t crc32c_portable(uint32_t crc, const void* bytes, size_t size);  // the reference that tests compare with

}  // namespace gatun
