// Lossy: a transport with faults, around any other, for tests: it drops, duplicates, holds back and corrupts packets, each
// way, as its seed says. The same packets in the same order with the same seed meet the same faults.
//
// A packet that is held back comes out when a number of later ones have passed; when none follow it is as good as lost.
// Corruption flips one bit of a copy, and only where the inner transport can corrupt too (there the checksum is verified).
// Faults that need a copy are left out while no buffer for one is free. With all rates zero every call goes through.
//
// Called by the thread that owns the inner transport, which must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "host/transport/buffer_pool.h"
#include "host/transport/transport.h"

namespace gatun {

struct LossyRates {  // each the share of packets, 0 to 1; a packet meets at most one fault
  double drop = 0, duplicate = 0, hold = 0, corrupt = 0;
  double sum() const { return drop + duplicate + hold + corrupt; }
};

struct LossyOptions {
  uint64_t seed = 1;
  LossyRates send, receive;
  uint32_t hold_packets_max = 16;    // a held packet is overtaken by 1 to so many
  uint32_t copies = 64;              // packets that can be held at a time, and received copies in use, each way
};

struct LossyStats {
  uint64_t dropped = 0, duplicated = 0, held = 0, corrupted = 0;
};

class Lossy final : public Transport {
 public:
  static Result<std::unique_ptr<Lossy>> make(Transport* inner, const LossyOptions& options);

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override;
  int send(std::span<const TxPacket> packets) override;
  std::span<std::byte> arena(PeerId peer) override { return inner_->arena(peer); }
  Status lend(std::span<std::byte> memory) override { return inner_->lend(memory); }
  Status take_back(std::span<std::byte> memory) override { return inner_->take_back(memory); }
  void take_all_back() override { inner_->take_all_back(); }
  PeerId adopt(const RxPacket& packet) override { return inner_->adopt(packet); }
  void forget(PeerId peer) override { inner_->forget(peer); }
  bool prepare_wait() override;
  int wait_fd() const override { return inner_->wait_fd(); }
  void finish_wait() override { inner_->finish_wait(); }
  Status health() override { return inner_->health(); }
  TransportStats stats() const override { return inner_->stats(); }
  const LossyStats& faults() const { return faults_; }

 private:
  enum class Fault : uint8_t { kNone, kDrop, kDuplicate, kHold, kCorrupt };
  struct Way {             // one direction
    LossyRates rates;
    uint64_t random = 0;   // generator state
    uint64_t packets = 0;  // seen so far
    std::unique_ptr<BufferPool> pool;
  };
  struct HeldSend {
    TxPacket packet;
    BufferId buffer;
    uint64_t due;  // comes out when so many packets were seen
  };
  struct HeldReceive {
    RxPacket packet;
    uint64_t due;
  };

  Lossy(Transport* inner, const LossyOptions& options);
  uint64_t draw(Way* way) const;
  Fault roll(Way* way) const;
  void flip_bit(Way* way, std::byte* head, std::byte* payload, uint32_t payload_bytes) const;
  void send_held();
  bool send_one(const TxPacket& packet);
  bool send_copy(const TxPacket& packet, bool hold);
  bool copy_received(const RxPacket& packet, RxPacket* copy);
  int take_held(std::span<RxPacket> out);
  bool keep(RxPacket* packet);

  Transport* inner_;
  LossyOptions options_;
  bool may_corrupt_;
  Way send_, receive_;
  std::vector<HeldSend> held_sends_;
  std::vector<HeldReceive> held_receives_;
  LossyStats faults_;
};

}  // namespace gatun
