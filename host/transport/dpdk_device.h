// DpdkDeviceShared: a device with its transports. It deals received frames out to them by UDP port, answers questions for
// its addresses, and finds out where others are.
//
// Any transport's thread polls and sends. One at a time receives: a lock that is only tried, since whoever holds it deals to
// all. Each send queue has a lock too, held for one burst; transports share queues only where the device has too few.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "host/transport/dpdk_inbox.h"
#include "host/transport/dpdk_port.h"
#include "host/transport/dpdk_send.h"

namespace gatun {

class DpdkDeviceShared final : public DpdkDevice, public std::enable_shared_from_this<DpdkDeviceShared> {
 public:
  static std::shared_ptr<DpdkDevice> open(const DpdkSpec& spec, const DpdkDeviceOptions& options, Status* why);
  ~DpdkDeviceShared() override = default;

  std::string text() const override;
  std::string ip() const override { return spec_.addresses[0].ip.text(); }
  std::string warning() const override { return spec_.warning(); }
  uint32_t payload_bytes_max() const override {
    return frame_payload_bytes_max(port_->facts().mtu, spec_.address(true) != nullptr);  // the longer headers
  }
  uint32_t buffers() const override { return buffers_; }
  uint32_t receive_bytes() const override;
  Result<std::unique_ptr<Transport>> make_hub(uint16_t port, uint32_t buffers, uint32_t peers_max) override;
  Result<std::unique_ptr<Transport>> make_link(const Endpoint& peer, uint32_t buffers, TimeNs deadline) override;

  // For its transports. attach() gives one a UDP port (0: any) and a send queue.
  struct Seat {
    uint16_t port = 0;
    uint32_t queue = 0;
  };
  Result<Seat> attach(uint16_t port, DpdkInbox* inbox);
  void detach(const Seat& seat, DpdkInbox* inbox);  // drops what lies in the inbox
  void poll();                                      // deals out one burst, unless another thread is at it
  uint32_t send(uint32_t queue, rte_mbuf** mbufs, uint32_t count);
  Result<std::unique_ptr<DpdkSender>> take_sender();
  void give_sender(std::unique_ptr<DpdkSender> sender);
  Status health() const;

  const DpdkSpec& spec() const { return spec_; }
  const Mac& mac() const { return mac_; }
  const DpdkPortFacts& facts() const { return port_->facts(); }
  // Frames that came cut, or longer than the MTU: some kernel sends several packets as one.
  void count_cut() { cut_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Asked {
    Ip ip;
    Mac mac;
    bool known = false;
  };

  DpdkDeviceShared(const DpdkSpec& spec, uint32_t buffers, std::unique_ptr<DpdkPort> port);
  bool try_lock_receive() { return !receiving_.exchange(true, std::memory_order_acquire); }
  void lock_receive();
  void unlock_receive() { receiving_.store(false, std::memory_order_release); }
  void deal(rte_mbuf* mbuf);
  bool is_ours(const Frame& frame) const;
  void on_neighbour(const Frame& frame);
  void send_question(const Ip& own, const Ip& wanted);
  void send_small(const std::byte* frame, uint32_t bytes);
  Result<Mac> find_mac(const Ip& target, TimeNs deadline);

  const DpdkSpec spec_;
  const uint32_t buffers_;
  std::mutex senders_mutex_;
  std::vector<std::unique_ptr<DpdkSender>> senders_;  // idle; the port may hold frames of theirs, and goes before them
  std::unique_ptr<DpdkPort> port_;
  Mac mac_;
  std::atomic<bool> receiving_{false};
  std::array<std::atomic<bool>, 16> sending_{};  // by send queue

  // Under the receive lock.
  std::vector<DpdkInbox*> inboxes_;       // by seat number, null where free; entry 0 is nobody
  std::array<uint8_t, 65536> seat_of_{};  // by UDP port
  std::vector<Asked> asked_;
  std::array<rte_mbuf*, kBurst> burst_{};

  std::atomic<uint64_t> cut_{0}, unclaimed_{0};
  mutable std::atomic<uint64_t> cut_reported_{0};
};

}  // namespace gatun
