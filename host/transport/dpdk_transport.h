// DpdkTransport: the hub (many peers, known by source address) or a link (one peer, 0) on a DPDK device.
//
// Received packets stay in the device's own buffers until they are released. One thread at a time calls.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "host/transport/dpdk_device.h"
#include "host/transport/dpdk_send.h"
#include "host/transport/udp_peers.h"

namespace gatun {

class DpdkTransport final : public Transport {
 public:
  // port 0: any. strict: sources that are no peers are not heard.
  static Result<std::unique_ptr<DpdkTransport>> make(std::shared_ptr<DpdkDeviceShared> device, uint16_t port,
                                                     uint32_t buffers, uint32_t peers_max, bool strict);
  ~DpdkTransport() override;
  void set_peer(const Endpoint& peer, const FrameAddress& at);  // of a link, once: number 0

  TransportCaps caps() const override;
  int receive(std::span<RxPacket> out) override;
  void release(std::span<const BufferId> buffers) override;
  int send(std::span<const TxPacket> packets) override;
  PeerId adopt(const RxPacket& packet) override;
  void forget(PeerId peer) override;
  bool prepare_wait() override;
  int wait_fd() const override { return inbox_->wait_fd(); }
  void finish_wait() override { inbox_->end_sleep(); }
  Status health() override { return device_->health(); }
  TransportStats stats() const override;

 private:
  struct Source {
    sockaddr_storage address{};
    socklen_t size = 0;
    FrameAddress at;
  };

  DpdkTransport(std::shared_ptr<DpdkDeviceShared> device, std::unique_ptr<DpdkInbox> inbox,
                std::unique_ptr<DpdkSender> sender, uint32_t buffers, uint32_t peers_max, bool strict);
  bool accept(const DpdkInbox::Arrival& arrival, uint32_t index, RxPacket* out);
  FrameHeader header_to(const FrameAddress& to) const;
  bool sendable(const TxPacket& packet);

  std::shared_ptr<DpdkDeviceShared> device_;
  std::unique_ptr<DpdkInbox> inbox_;
  std::unique_ptr<DpdkSender> sender_;
  DpdkDeviceShared::Seat seat_;
  const bool strict_;
  UdpPeers peers_;
  std::vector<FrameHeader> headers_;    // by PeerId
  std::array<Source, kBurst> sources_;  // of the latest burst
  std::vector<rte_mbuf*> held_;         // by BufferId
  std::vector<BufferId> free_;          // last in, first out
  TransportStats stats_;
};

}  // namespace gatun
