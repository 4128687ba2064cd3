// Chunk numbers: 64 bits inside, 32 bits on the wire. A stream never resets, so the wire number wraps.
//
// extend() finds the full number nearest to one that is known, which is right while both are less than 2^31 apart; the
// window keeps live numbers within 2W of each other. Serial arithmetic as in RFC 1982.
#pragma once

#include <cstdint>

namespace gatun {

using Seq = uint64_t;

constexpr uint32_t wire_seq(Seq seq) { return static_cast<uint32_t>(seq); }

constexpr Seq extend_seq(Seq reference, uint32_t wire) {
  return reference + static_cast<int64_t>(static_cast<int32_t>(wire - static_cast<uint32_t>(reference)));
}

// a - b for numbers that wrap at 16 and 32 bits.
constexpr int32_t serial_distance(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }
constexpr int16_t serial_distance16(uint16_t a, uint16_t b) { return static_cast<int16_t>(static_cast<uint16_t>(a - b)); }

}  // namespace gatun
