// The hub and the link of the verbs transport (verbs.h) over VerbsQueue and VerbsInbox.
#pragma once

#include <unordered_map>
#include <vector>

#include "host/transport/verbs_queue.h"

namespace gatun {

class QueueGroup final : public VerbsGroup {
 public:
  static Result<std::shared_ptr<QueueGroup>> make(std::shared_ptr<OpenDevice> device, std::span<std::byte> results);
  ibv_pd* domain() const { return domain_.get(); }
  std::span<std::byte> results() const { return results_; }
  uint32_t key() const { return key_->lkey; }

 private:
  std::shared_ptr<OpenDevice> device_;
  VerbsDomain domain_;
  std::span<std::byte> results_;
  VerbsKey key_;
};

class QueuePort final : public VerbsPort {
 public:
  QueuePort(std::shared_ptr<QueueGroup> group, std::unique_ptr<VerbsQueue> queue)
      : group_(std::move(group)), queue_(std::move(queue)) {}
  std::string card() const override { return queue_->card().encode(); }
  VerbsQueue& queue() { return *queue_; }

 private:
  std::shared_ptr<QueueGroup> group_;
  std::unique_ptr<VerbsQueue> queue_;
};

class QueueHub final : public VerbsHub {
 public:
  static Result<std::unique_ptr<VerbsHub>> make(std::shared_ptr<OpenDevice> device, const VerbsHubOptions& options);

  Result<std::shared_ptr<VerbsGroup>> make_group(std::span<std::byte> results) override;
  Result<std::unique_ptr<VerbsPort>> make_port(const VerbsCard& worker, std::shared_ptr<VerbsGroup> group) override;
  PeerId attach(std::unique_ptr<VerbsPort> port) override;
  std::unique_ptr<VerbsPort> detach(PeerId peer) override;

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override { release_to(*pool_, buffers); }
  int send(std::span<const TxPacket> packets) override;
  std::span<std::byte> arena(PeerId peer) override;  // the result arena of the peer's group
  PeerId adopt(const RxPacket& packet) override { return packet.peer; }
  void forget(PeerId peer) override { detach(peer); }
  bool prepare_wait() override { return inbox_->prepare_wait(); }
  int wait_fd() const override { return inbox_->wait_fd(); }
  void finish_wait() override { inbox_->finish_wait(); }
  TransportStats stats() const override { return stats_; }

 private:
  QueueHub() = default;
  void touch(PeerId peer);

  VerbsHubOptions options_;
  std::shared_ptr<OpenDevice> device_;
  std::unique_ptr<VerbsInbox> inbox_;  // goes after the ports
  std::unique_ptr<BufferPool> pool_;
  std::vector<std::unique_ptr<QueuePort>> ports_;  // by PeerId
  std::unordered_map<uint32_t, PeerId> peers_;     // by the number of the queue pair
  std::vector<PeerId> touched_;                    // in this burst
  std::vector<uint8_t> is_touched_;                // by PeerId
  std::unique_ptr<RingHeads> heads_;               // of the latest burst
  TransportStats stats_;
};

class QueueLink final : public VerbsLink {
 public:
  static Result<std::unique_ptr<VerbsLink>> make(std::shared_ptr<OpenDevice> device, const ShmShape& shape,
                                                 const VerbsGid& from, const VerbsGid& to);

  std::string card() const override { return queue_->card().encode(); }
  Status connect(const std::string& card) override;

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override { release_to(*pool_, buffers); }
  int send(std::span<const TxPacket> packets) override;
  std::span<std::byte> arena(PeerId) override { return queue_->tx_arena(); }
  Status lend(std::span<std::byte> memory) override { return queue_->lend(memory); }
  Status take_back(std::span<std::byte> memory) override { return queue_->take_back(memory); }
  void take_all_back() override { queue_->take_all_back(); }
  PeerId adopt(const RxPacket&) override { return 0; }
  void forget(PeerId) override {}
  bool prepare_wait() override { return inbox_->prepare_wait(); }
  int wait_fd() const override { return inbox_->wait_fd(); }
  void finish_wait() override { inbox_->finish_wait(); }
  Status health() override { return queue_->failure(); }
  TransportStats stats() const override { return stats_; }

 private:
  QueueLink() = default;

  std::shared_ptr<OpenDevice> device_;
  VerbsDomain domain_;
  std::unique_ptr<VerbsInbox> inbox_;
  std::unique_ptr<VerbsQueue> queue_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<RingHeads> heads_;  // of the latest burst
  TransportStats stats_;
};

}  // namespace gatun
