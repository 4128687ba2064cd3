// UdpSender: the sending half of a UDP socket.
//
// Packets are taken in blocks. With GSO, packets of one size to one peer become one message of up to 64 segments, even when
// packets to other peers stand between them (a switch answers all children chunk by chunk); without it each packet is one.
// One sendmmsg sends a block. An interface that refuses GSO switches it off and the block is sent again without.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>

#include "host/transport/transport.h"
#include "host/transport/udp_peers.h"

namespace gatun {

class UdpSender {
 public:
  // peers == nullptr: a connected socket.
  UdpSender(int fd, const UdpPeers* peers, bool gso);
  UdpSender(const UdpSender&) = delete;
  UdpSender& operator=(const UdpSender&) = delete;

  int send(std::span<const TxPacket> packets);

  bool gso() const { return gso_; }
  uint64_t refused() const { return refused_; }
  // The error of the latest packet that the OS refused to send, once.
  int take_error();
  void add_stats(TransportStats* stats) const;

 private:
  static constexpr int kBlock = 64;           // packets looked at together
  static constexpr uint32_t kSegments = 64;   // UDP_MAX_SEGMENTS of the oldest kernels with GSO
  static constexpr uint32_t kGsoBytes = 65000;  // one IP packet before it is cut, headers included

  struct Message {
    PeerId peer = kNoPeer;
    uint32_t segment_bytes = 0;
    uint32_t bytes = 0;
    uint32_t packets = 0;
    uint32_t first_vector = 0, vectors = 0;
    bool closed = false;   // its last packet was shorter than the others
    bool settled = false;  // sent, or dropped for good
  };
  enum class Outcome : uint8_t { kDone, kFull, kAgain };  // kAgain: GSO was switched off, build the block anew

  int send_block(std::span<const TxPacket> packets);
  int plan(std::span<const TxPacket> packets);
  int message_for(const TxPacket& packet, uint32_t bytes, int count) const;
  void gather(std::span<const TxPacket> packets, int count);
  void describe(int index);
  Outcome transmit(int count);
  Outcome on_error(int error, int index);
  void settle(int index, bool sent);
  void mark_settled(int packets);

  int fd_;
  const UdpPeers* peers_;
  bool gso_;
  int ordered_blocks_ = 0;  // so many blocks are sent strictly in order, since the socket was full lately

  struct alignas(8) Control { std::byte bytes[CMSG_SPACE(sizeof(uint16_t))]; };
  std::array<Message, kBlock> plan_;
  std::array<int, kBlock> message_of_;  // packet -> message, kWaiting or kSettled
  std::array<mmsghdr, kBlock> messages_{};
  std::array<iovec, 2 * kBlock> vectors_{};
  std::array<Control, kBlock> controls_{};

  int error_ = 0;
  uint64_t packets_ = 0, bytes_ = 0, dropped_ = 0, oversize_ = 0, refused_ = 0;
};

}  // namespace gatun
