// Packets of the network simulation: descriptors without payload, in a pool. A packet of a tree carries the product's own
// header as a struct; a packet of a flow carries a segment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "experiments/net/units.h"
#include "protocols/wire.h"

namespace gatun::net {

enum class PacketKind : uint8_t {
  kTree,     // for the tree node or rank `target`
  kSegment,  // data of a flow, for the host `target`
  kAck,
};

struct Segment {
  TimePs sent_at;  // an acknowledgement brings it back, so a repeat measures the path as well
  uint32_t flow;
  uint32_t seq;   // of the packet within its flow; in an acknowledgement the first that is missing
  uint32_t hash;  // of the flow
  bool echo;      // of the congestion mark
};

struct Packet {
  TimePs arrives = 0;
  uint32_t next = kNone;  // in its link's line, or in the pool
  uint32_t target = kNone;
  uint32_t wire_bytes = 0;
  PacketKind kind = PacketKind::kTree;
  bool congested = false;
  bool markable = true;  // its sender understands marks (ECN)
  union {
    Header header = {};
    Segment segment;
  };
};
static_assert(sizeof(Packet) <= 64);

class PacketPool {
 public:
  uint32_t take() {
    if (free_ == kNone) grow();
    const uint32_t index = free_;
    free_ = at(index).next;
    ++in_use_;
    return index;
  }
  void give_back(uint32_t index) {
    at(index).next = free_;
    free_ = index;
    --in_use_;
  }
  Packet& at(uint32_t index) { return blocks_[index / kBlock][index % kBlock]; }
  uint64_t in_use() const { return in_use_; }

 private:
  static constexpr uint32_t kBlock = 4096;
  void grow() {
    const auto base = static_cast<uint32_t>(blocks_.size()) * kBlock;
    blocks_.push_back(std::make_unique<Packet[]>(kBlock));
    for (uint32_t i = kBlock; i-- > 0;) {
      blocks_.back()[i].next = free_;
      free_ = base + i;
    }
  }

  std::vector<std::unique_ptr<Packet[]>> blocks_;  // a packet stays where it is
  uint32_t free_ = kNone;
  uint64_t in_use_ = 0;
};

}  // namespace gatun::net
