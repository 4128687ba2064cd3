// ShmPort: one side's view of one shm link: the mapped region, its two rings, and the doorbells.
//
// The daemon's side creates everything: a region (rings, the worker's arena, copy cells) that both may write, and per group
// (one job on one lane) a result arena that its workers can only read. Sizes are sealed, so no peer can shrink memory that
// the other reads. The shape is agreed beforehand; nothing about it is read from the region.
//
// Threads: made and destroyed by a control thread, used by the thread of the hub or link that holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "host/base/os.h"
#include "host/transport/shm_ring.h"
#include "protocols/packet.h"
#include "protocols/status.h"

namespace gatun {

struct ShmShape {
  uint32_t payload_bytes = 0;  // largest payload, a multiple of 64
  uint32_t slots = 0;          // descriptors in each ring, a power of two
  uint64_t tx_bytes = 0;       // the worker's arena: W places of payload_bytes per tree
  uint64_t result_bytes = 0;   // the group's result arena: 2W places of payload_bytes per tree

  // For a worker with that many trees on the lane: nothing that the protocol has in flight can overflow the rings.
  static ShmShape make(uint32_t trees, uint32_t window, uint32_t payload_bytes);
  // Sane enough to be computed with; a ticket may come from anybody.
  bool valid() const;
  uint64_t region_bytes() const;
  bool operator==(const ShmShape&) const = default;
};

// A mapping of a memfd.
class ShmMap {
 public:
  ShmMap() = default;
  ShmMap(ShmMap&& other) noexcept;
  ShmMap& operator=(ShmMap&& other) noexcept;
  ~ShmMap();
  // The first populate_bytes get their pages now, not when traffic first touches them.
  static Result<ShmMap> make(int fd, uint64_t bytes, bool writable, uint64_t populate_bytes);

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// A group's results: written by the daemon, read by the group's workers.
class ShmArena {
 public:
  static Result<std::shared_ptr<ShmArena>> make(uint64_t bytes);

  std::span<std::byte> bytes() const { return map_.bytes(); }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
  ShmMap map_;
};

// What a worker needs to open its end.
struct ShmTicket {
  ShmShape shape;
  Fd region;
  Fd results;
  Fd up_bell;    // eventfd: the worker rings, the daemon listens
  Fd down_bell;  // pipe, reading end: the daemon rings
};

class ShmPort {
 public:
  // The daemon's side; *ticket is for the worker.
  static Result<std::unique_ptr<ShmPort>> make(const ShmShape& shape, std::shared_ptr<ShmArena> results, ShmTicket* ticket);
  // The worker's side. Refuses memory that is not sealed or not of the shape.
  static Result<std::unique_ptr<ShmPort>> open(ShmTicket ticket);

  const ShmShape& shape() const { return shape_; }
  std::span<std::byte> tx_arena() const { return tx_arena_; }
  std::span<std::byte> results() const { return results_; }
  int doorbell_fd() const { return listen_bell_.get(); }

  // False: the ring, or for a payload that must be copied every cell, is in use.
  bool push(const TxPacket& packet) { return out_.push(packet, place(packet.payload, packet.payload_bytes)); }
  ShmConsumer& in() { return in_; }
  // Wakes the other side if it sleeps: after a burst of pushes and a sequentially consistent fence.
  void ring_if_asleep();
  void drain_doorbell();  // the worker's side, after it slept

  // Where a payload lies in memory that the other side sees; anything else must be copied.
  ShmPlace place(const std::byte* payload, uint32_t bytes) const;
  // The payload that a descriptor of the other side refers to; nullptr if it lies outside what that side may refer to.
  const std::byte* resolve(const ShmDescriptor& descriptor) const;

 private:
  ShmPort(const ShmShape& shape, bool daemon, ShmMap region) : shape_(shape), daemon_(daemon), region_(std::move(region)) {}
  void lay_out();

  ShmShape shape_;
  bool daemon_;
  ShmMap region_;
  ShmMap results_map_;                 // the worker's side
  std::shared_ptr<ShmArena> results_owner_;  // the daemon's side
  std::span<std::byte> tx_arena_, results_;
  Fd ring_bell_, listen_bell_;
  Fd bell_keeper_;  // the daemon keeps a reading end too, so that a bell without a worker raises no SIGPIPE
  ShmProducer out_;
  ShmConsumer in_;
};

}  // namespace gatun
