// Packets as they pass between a transport and the machines above it: views and references, never owned bytes.
//
// A received packet's bytes stay valid until its buffer is handed back to the transport that delivered it. A sent packet's
// payload stays valid until the protocol says that nobody can ask for it again (see PROTOCOL.md, "Slot and bank").
#pragma once

#include <cstddef>
#include <cstdint>

namespace gatun {

inline constexpr size_t kHeaderBytes = 32;  // wire.h

// A peer as its transport knows it. The shell that owns several transports may keep the transport's index in the top byte.
using PeerId = uint32_t;
inline constexpr PeerId kNoPeer = 0xffffffffu;

// A receive buffer as its transport knows it; kNoBuffer needs no release.
using BufferId = uint32_t;
inline constexpr BufferId kNoBuffer = 0xffffffffu;

struct RxPacket {
  const std::byte* head = nullptr;     // kHeaderBytes
  const std::byte* payload = nullptr;  // payload_bytes, any alignment
  uint32_t payload_bytes = 0;
  PeerId peer = kNoPeer;  // kNoPeer: a source that the transport does not know; Transport::adopt makes it known
  BufferId buffer = kNoBuffer;
  uint32_t source = 0;        // index of the source address within this burst, for Transport::adopt
  bool congested = false;     // IP ECN said CE
  bool checksummed = true;    // the header's checksum must be verified; false: none is there, and nothing can corrupt
};

struct TxPacket {
  std::byte head[kHeaderBytes];
  const std::byte* payload = nullptr;
  uint32_t payload_bytes = 0;
  PeerId peer = kNoPeer;
  const std::byte* seen_at = nullptr;  // of a payload in lent memory: the place in the arena where the peer gets it
};

}  // namespace gatun
