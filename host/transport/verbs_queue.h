// VerbsQueue: one end of a reliable queue pair, with the memory that the other end writes into.
//
//   region:  progress of both rings | slots out, in | copy cells out, in | contributions | results (the worker's end)
//
// Both ends lay out their region alike, so what lies here at an offset goes to the same offset there ("out" to "in"): the
// worker's contributions to their mirror at the daemon, the daemon's results, which lie in its group's memory, to their
// mirror at the worker. Rings and cells are those of shm (shm_ring.h); the other end's progress comes by RDMA write too.
//
// Lent memory is read by the card only: requests name it until they are complete, so it is taken back behind the last of
// them, or behind the end of the queue pair.
//
// An error of the queue pair is final: alive() is then false, nothing may be pushed, and failure() says why.
//
// Threads: made and connected by one, then used by the thread of the hub or link that holds it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "host/transport/ring_packet.h"
#include "host/transport/verbs_device.h"
#include "host/transport/verbs_inbox.h"

namespace gatun {

// Anonymous memory that a forked child does not get, since it must not share pages that the network card writes.
class VerbsMemory {
 public:
  static Result<VerbsMemory> make(uint64_t bytes);
  VerbsMemory() = default;
  VerbsMemory(VerbsMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  VerbsMemory& operator=(VerbsMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~VerbsMemory();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class VerbsQueue {
 public:
  struct Config {
    std::shared_ptr<OpenDevice> device;
    VerbsInbox* inbox = nullptr;
    ibv_pd* domain = nullptr;
    ShmShape shape;
    VerbsGid from{}, to{};
    bool daemon = false;
    std::span<std::byte> results;  // the daemon's end: registered in the domain
    uint32_t results_key = 0;
  };
  static Result<std::unique_ptr<VerbsQueue>> make(const Config& config);

  VerbsCard card() const;
  // Before the first push().
  Status connect(const VerbsCard& peer);

  const ShmShape& shape() const { return config_.shape; }
  uint32_t number() const { return pair_->qp_num; }
  std::span<std::byte> tx_arena() const { return tx_arena_; }
  std::span<std::byte> results() const { return results_; }

  bool alive() const { return failure_.ok(); }
  const Status& failure();  // looks for one first

  // Puts a packet into the ring and its writes into a batch; flush() gives the batch to the network card. False: the ring,
  // the cells or the card's queue is full.
  bool push(const TxPacket& packet);
  void flush();

  // The next descriptor of the other end, once a message of this queue pair came in.
  bool pop(ShmDescriptor* descriptor);
  const std::byte* resolve(const ShmDescriptor& descriptor) const;
  // Lets the other end know how far pop() came, if it may need that.
  void tell_progress();

  // As in Transport; the worker's end.
  static bool lends();  // this kernel keeps pages that the card reads at their place when the process forks (Linux 5.12)
  Status lend(std::span<std::byte> memory);
  Status take_back(std::span<std::byte> memory);
  void take_all_back();

 private:
  static constexpr uint32_t kBatch = 2 * kBurst + 2;
  struct Lent {
    std::span<std::byte> memory;
    VerbsKey key;
    uint64_t last_work = 0;  // that reads it
  };
  struct Layout {
    uint64_t progress_out, progress_in, slots_out, slots_in, cells_out, cells_in, tx, results, end;
  };
  static Layout layout_of(const ShmShape& shape, bool daemon);

  explicit VerbsQueue(const Config& config) : config_(config) {}
  Status make_pair();
  void lay_out();
  Status move_to(ibv_qp_state state, const VerbsCard& peer);
  bool has_room(uint32_t works);
  void reap();
  void fail(const std::string& why);
  void write(const std::byte* from, uint32_t bytes, uint32_t key, uint64_t to, bool announce, bool ask = false);
  void write_payload(const ShmDescriptor& descriptor, const std::byte* payload, Lent* lent);
  Lent* lent_at(const std::byte* payload, uint32_t bytes);
  static bool holds(std::span<const std::byte> memory, const std::byte* at, uint64_t bytes) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(memory.data());
    return offset < memory.size() && bytes <= memory.size() - offset;
  }
  bool wait_for(uint64_t works, TimeNs patience);
  Status release(Lent& lent);
  void end();

  Config config_;
  VerbsAddress address_;
  Layout layout_{};
  VerbsMemory memory_;
  VerbsKey key_;
  std::vector<Lent> lent_;
  size_t latest_lent_ = 0;  // where the latest payload was found
  VerbsCompletions sent_;
  VerbsPair pair_;
  uint32_t depth_ = 0;         // of the send queue
  uint32_t inline_bytes_ = 0;  // that go with the request itself
  uint32_t first_packet_ = 0;
  VerbsCard peer_;

  ShmProducer out_;
  ShmConsumer in_;
  std::byte* progress_in_ = nullptr;
  std::span<std::byte> tx_arena_, results_;
  uint32_t told_ = 0, taken_ = 0, taken_cells_ = 0;  // descriptors; cells since told_

  std::array<ibv_send_wr, kBatch> works_{};
  std::array<ibv_sge, kBatch> pieces_{};
  uint32_t batched_ = 0;
  uint64_t posted_ = 0, completed_ = 0, asked_ = 0;  // works; asked_: up to which a completion was asked for
  Status failure_;
};

}  // namespace gatun
