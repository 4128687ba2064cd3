#include "protocols/mesh_wire.h"

#include <algorithm>
#include <type_traits>

#include "protocols/fields.h"

namespace gatun::mesh_wire {
namespace {

using Writer = FieldWriter;
using Reader = FieldReader;

// Values of the type byte: the message's place in the variant, plus one.
constexpr size_t kTypes = std::variant_size_v<Message>;
constexpr size_t kAheadMax = 4096;  // Aggregator's kWindowMax

void write(Writer& w, const Announce& m) {
  w.u32(m.epoch);
  w.u32(m.ordinal);
  w.contract(m.contract);
  w.u32(m.ready_job);
}
void read(Reader& r, Announce& m) {
  m.epoch = r.u32();
  m.ordinal = r.u32();
  m.contract = r.contract();
  m.ready_job = r.u32();
}

void write(Writer& w, const Holdings& m) {
  w.u32(m.next_op);
  w.u16(static_cast<uint16_t>(m.refused.size()));
  for (const uint32_t op : m.refused) w.u32(op);
  w.u16(static_cast<uint16_t>(m.operations.size()));
  for (const Holdings::Operation& operation : m.operations) {
    w.u32(operation.op);
    w.u64(operation.chunks);
    w.contract(operation.contract);
  }
  w.u16(static_cast<uint16_t>(m.trees.size()));
  for (const Holdings::Tree& tree : m.trees) {
    w.u32(tree.next.op);
    w.u64(tree.next.index);
    w.u16(static_cast<uint16_t>(tree.ahead.size()));
    for (const Holdings::Chunk& chunk : tree.ahead) {
      w.u32(chunk.op);
      w.u64(chunk.index);
    }
  }
}
void read(Reader& r, Holdings& m) {
  m.next_op = r.u32();
  m.refused.resize(r.count(kHoldingsTreesMax));
  for (uint32_t& op : m.refused) op = r.u32();
  m.operations.resize(r.count(kHoldingsOperationsMax));
  for (Holdings::Operation& operation : m.operations) {
    operation.op = r.u32();
    operation.chunks = r.u64();
    operation.contract = r.contract();
  }
  m.trees.resize(r.count(kHoldingsTreesMax));
  for (Holdings::Tree& tree : m.trees) {
    tree.next.op = r.u32();
    tree.next.index = r.u64();
    tree.ahead.resize(r.count(kAheadMax));
    for (Holdings::Chunk& chunk : tree.ahead) {
      chunk.op = r.u32();
      chunk.index = r.u64();
    }
  }
}

void write(Writer& w, const Frozen& m) {
  w.u32(m.epoch);
  w.u32(m.job);
  w.u32(m.first_ordinal);
  w.text(m.why);
  write(w, m.holdings);
}
void read(Reader& r, Frozen& m) {
  m.epoch = r.u32();
  m.job = r.u32();
  m.first_ordinal = r.u32();
  m.why = r.text();
  read(r, m.holdings);
}

void write(Writer& w, const Abort& m) {
  w.text(m.text);
  w.u8(static_cast<uint8_t>((m.timed_out ? 1 : 0) | (m.lost ? 2 : 0)));
}
void read(Reader& r, Abort& m) {
  m.text = r.text();
  const uint8_t why = r.u8_below(4);
  m.timed_out = why & 1;
  m.lost = why & 2;
}

void write(Writer& w, const Leave& m) {
  w.u32(m.ordinal);
}
void read(Reader& r, Leave& m) {
  m.ordinal = r.u32();
}

void write(Writer& w, const KeepAlive& m) {
  w.u8(m.ask ? 1 : 0);
}
void read(Reader& r, KeepAlive& m) {
  m.ask = r.u8_below(2) != 0;
}

template <size_t kAlternative = 0>
bool read_type(size_t type, Reader& r, Message* message) {
  if constexpr (kAlternative < kTypes) {
    if (type != kAlternative + 1) return read_type<kAlternative + 1>(type, r, message);
    read(r, message->emplace<kAlternative>());
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  std::vector<std::byte> bytes;
  Writer w(&bytes);
  w.u8(kVersion);
  w.u8(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& m) { write(w, m); }, message);
  return bytes;
}

std::string decode(std::span<const std::byte> bytes, Message* message) {
  Reader r(bytes);
  const unsigned version = r.u8(), type = r.u8();
  if (!r.ok()) return "a message of less than two bytes";
  if (version != kVersion) {
    return "mesh version " + std::to_string(version) + ", this is version " + std::to_string(kVersion) +
           ": all ranks need the same version of Gatun";
  }
  if (!read_type(type, r, message)) return "unknown message type " + std::to_string(type);
  if (!r.done()) return "message of type " + std::to_string(type) + " has bad fields or length";
  return "";
}

}  // namespace gatun::mesh_wire
