// What ranks say to each other on the mesh's message connections, and the bytes of it. PROTOCOL.md is its document.
//
// u8 version, u8 type, fields; integers big-endian, texts a u16 length and bytes (as in control.h). Decoding never reads
// outside its input, refuses trailing bytes and lists beyond their bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "protocols/contract.h"
#include "protocols/recovery.h"

namespace gatun::mesh_wire {

inline constexpr uint8_t kVersion = 2;
inline constexpr size_t kTextBytesMax = 4096;  // longer texts are cut

// I am at this operation on the ring.
struct Announce {
  uint32_t epoch = 0;    // of the communicator: grows by one with every change of path
  uint32_t ordinal = 0;  // counts the communicator's operations from 0
  Contract contract;
  uint32_t ready_job = 0;  // handle of a switch epoch that this rank is ready to go over to after this operation; 0: none
  bool operator==(const Announce&) const = default;
};

// The switch epoch is over for this rank, and this is what it holds. Whoever hears it does the same.
struct Frozen {
  uint32_t epoch = 0;
  uint32_t job = 0;            // handle
  uint32_t first_ordinal = 0;  // ordinal of the epoch's first operation, so that a confused rank is found out
  std::string why;             // "no answer from 10.0.0.1:7117 for 500 ms"
  Holdings holdings;
  bool operator==(const Frozen&) const = default;
};

struct Abort {       // I give up for all of us, or pass on that another does
  std::string text;  // names who: "rank 2 (host b, pid 77) gave up: ..."
  bool timed_out = false;
  bool lost = false;  // because another rank is lost
  bool operator==(const Abort&) const = default;
};
struct Leave {  // orderly end, after so many operations
  uint32_t ordinal = 0;
  bool operator==(const Leave&) const = default;
};
struct KeepAlive {  // I live
  bool ask = false;  // do you? An operation's time is over here, and the job ends for all: who hears whom?
  bool operator==(const KeepAlive&) const = default;
};

using Message = std::variant<Announce, Frozen, Abort, Leave, KeepAlive>;

std::vector<std::byte> encode(const Message& message);
// "" or what is wrong with the bytes.
std::string decode(std::span<const std::byte> bytes, Message* message);

}  // namespace gatun::mesh_wire
