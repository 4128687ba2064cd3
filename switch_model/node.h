// Node: one aggregation switch, or one lane of one. Packets come in, packets go out; it owns every tree admitted to it.
//
// It joins the Aggregator's decisions to payloads: contributions stay where the transport put them (held by reference) until
// the last has come, then one pass reduces them into the job's arena, 2W places addressed by chunk number. No I/O, no clock,
// no allocation after admit(). One thread calls.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocols/aggregator.h"
#include "protocols/packet.h"
#include "protocols/status.h"
#include "protocols/time.h"
#include "protocols/wire.h"

namespace gatun {

// What a switch must know of one tree of one job.
struct TreeSpec {
  uint32_t job = 0;             // handle
  uint64_t token = 0;           // what a PROBE must carry to become child k's peer
  uint8_t tree = 0;
  uint32_t window = 16;
  uint32_t payload_bytes = 1024;  // most payload of one packet
  std::vector<std::vector<uint16_t>> child_ranks;  // per child: the ranks below it
  bool root = true;
  PeerId parent = kNoPeer;      // inner switches: where partial results go
  uint8_t child_at_parent = 0;
  bool parent_checksum = true;

  size_t arena_bytes() const { return size_t{2} * window * payload_bytes; }
};

inline constexpr int kStatusRanksMax = 64;  // missing ranks that one STATUS names

struct NodeStats {
  uint64_t data = 0, results = 0, repeats = 0, statuses = 0, probes = 0, refusals = 0;
  uint64_t dropped_malformed = 0, dropped_checksum = 0, dropped_foreign = 0, dropped_stale = 0, dropped_unexpected = 0;
  uint64_t reduced_chunks = 0, reduced_bytes = 0;  // bytes written
  uint64_t sent_results = 0, sent_partials = 0;    // packets, repeats included
};

struct TreeStats {
  uint64_t operations = 0;                         // begun; counted by their numbers, so also those that skipped this tree
  uint64_t contributions = 0, repeats = 0, statuses = 0, refusals = 0;
  uint64_t chunks = 0, marked = 0;                 // completed; of those, with a congestion mark
  uint64_t reduced_chunks = 0, reduced_bytes = 0;  // those with payload; bytes written
  uint64_t reduce_ns = 0;                          // 0 without a clock

  TreeStats& operator+=(const TreeStats& other);  // of another tree of the same job
};

// What an observer sees of a tree.
struct TreeView {
  uint32_t job = 0;
  uint8_t tree = 0;
  TreeStats stats;
  uint32_t banks = 0, open = 0;      // open: some children have contributed, or the parent has yet to answer
  TimeNs waiting_since = kNever;     // first contribution to the oldest chunk that lacks some; kNever: none does
  uint64_t missing = 0;              // the children it lacks
  uint64_t operation = 0;            // the one it belongs to
};

// What a Node wants done after a packet. Fixed capacity; the caller empties it after each burst or when full(): first it
// sends, then it releases, because an answer may quote the bytes of the packet that asked.
class Outbox {
 public:
  static constexpr int kSends = 256;
  static constexpr int kReleases = 512;
  std::span<const TxPacket> sends() const { return {sends_.data(), static_cast<size_t>(send_count_)}; }
  std::span<const BufferId> releases() const { return {releases_.data(), static_cast<size_t>(release_count_)}; }
  void clear() { send_count_ = release_count_ = status_count_ = 0; }
  // No room for everything that one more packet can cause.
  bool full() const {
    return send_count_ + kChildrenMax + 1 > kSends || release_count_ + 3 * kChildrenMax + 1 > kReleases ||
           status_count_ == kStatuses;
  }

 private:
  friend class Node;
  static constexpr int kStatuses = 64;
  using StatusPayload = std::array<std::byte, 2 + 2 * kStatusRanksMax>;
  void release(BufferId buffer) {
    if (buffer != kNoBuffer) releases_[static_cast<size_t>(release_count_++)] = buffer;
  }
  std::array<TxPacket, kSends> sends_;
  std::array<BufferId, kReleases> releases_;
  std::array<StatusPayload, kStatuses> statuses_;
  int send_count_ = 0, release_count_ = 0, status_count_ = 0;
};

class Node {
 public:
  // trees_max: (job, tree) pairs at the same time. clock: what TreeStats::reduce_ns is measured by; null: it is not.
  explicit Node(uint32_t trees_max, TimeNs (*clock)() = nullptr);
  ~Node();

  // The arena must be spec.arena_bytes() long and outlive the tree. Errors: kInvalidArgument, kRefused (table full).
  Status admit(const TreeSpec& spec, std::span<std::byte> arena);
  // Forgets a tree; its held buffers come out in the (empty) outbox. True: there are more, empty it and call again.
  bool remove(uint32_t job, uint8_t tree, Outbox* out);

  // Handles one packet. Its buffer is given back through out->releases(), now or later. The outbox must not be full().
  void on_packet(const RxPacket& packet, TimeNs now, Outbox* out);

  // Is this packet a PROBE with a right token? The caller then has its transport adopt the source (if the peer is unknown)
  // and sets packet.peer before on_packet(), which makes that peer the child's.
  bool accepts_probe(const RxPacket& packet) const;

  NodeStats stats() const { return stats_; }
  uint32_t trees() const { return tree_count_; }
  // Chunks that wait for somebody, and the peer of a child (kNoPeer until its probe came).
  uint32_t open_banks(uint32_t job, uint8_t tree) const;
  PeerId child_peer(uint32_t job, uint8_t tree, uint8_t child) const;
  // For an observer: the tree in place 0 <= place < places(). Returns how many banks were looked at; 0: no tree is there.
  // admit() and remove() move trees between places.
  size_t places() const { return table_.size(); }
  uint32_t view(size_t place, TreeView* view) const;

 private:
  struct Tree;
  Tree* find(uint32_t job, uint8_t tree) const;
  size_t slot_of(uint32_t job, uint8_t tree) const;
  // on_data and on_answer return whether they kept the packet's buffer.
  bool on_data(Tree& tree, const Header& header, const RxPacket& packet, TimeNs now, Outbox* out);
  bool on_answer(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out);
  void on_status(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out);
  void on_probe(Tree& tree, const Header& header, const RxPacket& packet, Outbox* out);
  void open(Tree& tree, const Header& header, uint32_t bank, TimeNs now);
  void complete(Tree& tree, uint32_t bank, TimeNs now, Outbox* out);
  void answer_all(Tree& tree, uint32_t bank, Outbox* out);
  void answer_one(Tree& tree, uint32_t bank, uint8_t child, Outbox* out);
  void send_up(Tree& tree, uint32_t bank, bool repeat, Outbox* out);
  void send_status(Tree& tree, uint32_t bank, uint8_t child, Outbox* out);
  void release(Tree& tree, uint32_t bank, uint64_t children, Outbox* out);
  void drain_void(Tree& tree, Outbox* out);

  std::vector<std::unique_ptr<Tree>> table_;  // open addressing by (job, tree), twice trees_max
  uint32_t trees_max_;
  TimeNs (*clock_)();
  uint32_t tree_count_ = 0;
  NodeStats stats_;
};

}  // namespace gatun
