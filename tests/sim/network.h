// Network: packets on their way between endpoints, and everything that can happen to them there.
//
// A path copies the payload when the packet is sent (as sockets do) or passes a reference to the sender's memory (as shared
// memory does), which is then read when the receiver looks. Each packet's fate is a draw keyed by (seed, fault, path, number
// on that path). Packets live in a pool; the receiver frees them, so a switch can hold them as its receive buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocols/packet.h"
#include "protocols/wire.h"
#include "tests/sim/rng.h"
#include "tests/sim/world.h"

namespace gatun::sim {

struct Packet {
  std::array<std::byte, kHeaderBytes> head;
  const std::byte* payload = nullptr;
  uint32_t payload_bytes = 0;
  uint32_t from = 0, to = 0;
  bool by_reference = false;
  bool congested = false;
  bool checksummed = true;  // the path can corrupt
  bool in_use = false;
  std::array<std::byte, kPayloadMax + 8> data;  // 8 for misalignment
};

class Network {
 public:
  explicit Network(World& world);

  // Makes the path between two endpoints, both ways, or changes its kind.
  void connect(uint32_t a, uint32_t b, Path path);
  void send(uint32_t from, uint32_t to, const TxPacket& tx);

  Packet& packet(uint32_t index) { return blocks_[index / kBlock][index % kBlock]; }
  void free(uint32_t index);
  uint32_t in_use() const { return in_use_; }
  uint64_t sent() const { return sent_; }
  TimeNs delay_max(uint32_t from, uint32_t to) const;  // of a packet without faults

  // Loses the next packet from `from` that carries this chunk. lost_at(): when that happened, kNever if it has not.
  void lose_one(uint32_t from, uint32_t job, uint8_t tree, uint32_t seq);
  void lose_none() { losing_ = false, lost_at_ = kNever; }
  TimeNs lost_at() const { return lost_at_; }

 private:
  static constexpr uint32_t kBlock = 256;
  static constexpr size_t kHistory = 64;
  struct Link {
    uint32_t from = 0, to = 0;
    Path path = Path::kCopied;
    TimeNs delay = 0;
    TimeNs busy_until = 0;  // arrival of the latest packet in order
    uint64_t packets = 0;
  };
  struct Fate {
    bool lost = false, twice = false;
    bool in_order = true;
    TimeNs extra = 0;
  };

  uint32_t take();
  int link_index(uint32_t from, uint32_t to) const { return links_at_[from * kEndpoints + to]; }
  bool cut(const Link& link) const;
  Fate draw_fate(const Link& link);
  void damage(Link& link, Packet& packet);
  void fill(Packet& packet, const Link& link, const TxPacket& tx);
  void launch(Link& link, uint32_t index, const Fate& fate);
  void remember(const Link& link, const Packet& packet);
  void replay(const Link& link);
  void forge(const Link& link, const Packet& packet);
  uint32_t pick_forger(const Link& link, Header& header, bool same_fields, Stream& random) const;
  void trace(const char* what, const Packet& packet);
  Stream draw(Draw subsystem, const Link& link) const;

  World& world_;
  std::vector<std::unique_ptr<Packet[]>> blocks_;
  std::vector<uint32_t> unused_;
  std::vector<int16_t> links_at_;  // by from and to; -1 none
  std::vector<Link> links_;
  std::vector<Packet> history_;
  uint64_t history_count_ = 0;
  uint32_t in_use_ = 0;
  uint64_t sent_ = 0;
  bool losing_ = false;
  TimeNs lost_at_ = kNever;
  uint32_t lose_from_ = 0, lose_job_ = 0, lose_seq_ = 0;
  uint8_t lose_tree_ = 0;
};

}  // namespace gatun::sim
