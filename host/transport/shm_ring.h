// The rings of a shm link: one producer, one consumer, descriptors of one cache line.
//
// A slot says by its turn number that it holds the packet of that position, so the consumer touches nothing but the slot;
// the consumer's progress is on a line of its own, which the producer reads only when the ring seems full. Payloads that are
// not in an arena go through a few copy cells, used in turn and free again when the consumer has passed their position.
//
// What comes from the other side is read once into private memory. Every value it can hold is harmless here: a wrong turn is
// a packet that is not there, a wrong progress fills or overruns only the writer's own ring.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "protocols/packet.h"

namespace gatun {

inline constexpr uint32_t kShmCells = 8;  // per ring, a power of two

enum class ShmPlaceKind : uint32_t { kNone = 0, kCell = 1, kTxArena = 2, kResults = 3 };

struct ShmPlace {
  ShmPlaceKind kind = ShmPlaceKind::kNone;
  uint64_t offset = 0;  // into the arena, or the number of the cell
};

struct ShmDescriptor {
  std::byte head[kHeaderBytes];
  uint64_t offset = 0;
  uint32_t kind = 0;
  uint32_t payload_bytes = 0;
};

struct alignas(64) ShmSlot {
  ShmDescriptor descriptor;
  std::atomic<uint32_t> turn;  // position + 1 when it holds that position's packet
};
static_assert(sizeof(ShmSlot) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Two lines apart, since neighbouring lines are fetched together.
struct alignas(128) ShmRingControl {
  alignas(128) std::atomic<uint32_t> consumed;  // positions that the consumer is done with
  alignas(128) std::atomic<uint32_t> sleeping;  // the consumer wants its doorbell rung
};
static_assert(sizeof(ShmRingControl) == 256);

struct ShmRing {
  ShmRingControl* control = nullptr;
  ShmSlot* slots = nullptr;
  uint32_t mask = 0;
  std::byte* cells = nullptr;
  uint32_t cell_bytes = 0;
};

class ShmProducer {
 public:
  ShmProducer() = default;
  explicit ShmProducer(const ShmRing& ring) : ring_(ring) {}

  // False: the ring, or for a payload that must be copied every cell, is in use.
  bool push(const TxPacket& packet, ShmPlace place) {
    if (next_ - consumed_ > ring_.mask && !refresh()) return false;
    if (place.kind == ShmPlaceKind::kCell && !fill_cell(packet, &place)) return false;
    ShmSlot& slot = ring_.slots[next_ & ring_.mask];
    std::memcpy(slot.descriptor.head, packet.head, kHeaderBytes);
    slot.descriptor.offset = place.offset;
    slot.descriptor.kind = static_cast<uint32_t>(place.kind);
    slot.descriptor.payload_bytes = packet.payload_bytes;
    slot.turn.store(++next_, std::memory_order_release);
    return true;
  }

  // The slot of the latest push.
  const ShmSlot& last() const { return ring_.slots[(next_ - 1) & ring_.mask]; }

  // True once for each time that the consumer fell asleep: ring its doorbell. A sequentially consistent fence must stand
  // between the pushes and this; it pairs with the one before the consumer's last look.
  bool must_ring() {
    return ring_.control->sleeping.load(std::memory_order_relaxed) != 0 &&
           ring_.control->sleeping.exchange(0, std::memory_order_relaxed) != 0;
  }

 private:
  bool refresh() {
    consumed_ = ring_.control->consumed.load(std::memory_order_acquire);
    return next_ - consumed_ <= ring_.mask;
  }

  // Its position is among those not yet consumed: younger than the oldest of them.
  bool cell_in_use(uint32_t cell) const {
    return cells_used_ >= kShmCells && next_ - cell_position_[cell] <= next_ - consumed_ && next_ != consumed_;
  }

  bool fill_cell(const TxPacket& packet, ShmPlace* place) {
    const uint32_t cell = cells_used_ & (kShmCells - 1);
    if (cell_in_use(cell)) {
      refresh();
      if (cell_in_use(cell)) return false;
    }
    std::memcpy(ring_.cells + uint64_t{cell} * ring_.cell_bytes, packet.payload, packet.payload_bytes);
    cell_position_[cell] = next_;
    ++cells_used_;
    place->offset = cell;
    return true;
  }

  ShmRing ring_;
  uint32_t next_ = 0;
  uint32_t consumed_ = 0;  // as last read
  uint64_t cells_used_ = 0;
  uint32_t cell_position_[kShmCells] = {};  // where it was last used
};

class ShmConsumer {
 public:
  ShmConsumer() = default;
  explicit ShmConsumer(const ShmRing& ring) : ring_(ring) {}

  bool empty() const { return slot().turn.load(std::memory_order_acquire) != next_ + 1; }

  // Copies the next descriptor out; false if there is none. Its slot and cell stay in use until consume().
  bool peek(ShmDescriptor* out) const {
    if (empty()) return false;
    std::memcpy(out, &slot().descriptor, sizeof(*out));
    std::atomic_signal_fence(std::memory_order_seq_cst);  // from here on only the copy is looked at
    return true;
  }
  void advance() { ++next_; }
  // Tells the producer; once for a burst.
  void consume() { ring_.control->consumed.store(next_, std::memory_order_release); }

  const std::byte* cell(uint64_t index) const {
    return index < kShmCells ? ring_.cells + index * ring_.cell_bytes : nullptr;
  }

  // Announces sleep; after it a sequentially consistent fence, then a last look by empty().
  void sleep() { ring_.control->sleeping.store(1, std::memory_order_relaxed); }
  void awake() { ring_.control->sleeping.store(0, std::memory_order_relaxed); }

 private:
  ShmSlot& slot() const { return ring_.slots[next_ & ring_.mask]; }

  ShmRing ring_;
  uint32_t next_ = 0;
};

}  // namespace gatun
