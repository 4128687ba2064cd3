// UdpReceiver: the receiving half of a UDP socket.
//
// Up to a burst of buffers from the pool stands ready in the message vector. One recvmmsg fills some; each datagram, or each
// segment of a GRO packet, becomes one RxPacket that points into its buffer. A filled message that does not fit into the
// caller's burst waits for the next call. Without a free buffer the socket is drained into nothing, and counted.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "host/transport/buffer_pool.h"
#include "host/transport/transport.h"
#include "host/transport/udp_peers.h"

namespace gatun {

class UdpReceiver {
 public:
  // peers == nullptr: a connected socket, whose packets all come from peer 0.
  UdpReceiver(int fd, std::unique_ptr<BufferPool> pool, const UdpPeers* peers);
  UdpReceiver(const UdpReceiver&) = delete;
  UdpReceiver& operator=(const UdpReceiver&) = delete;

  int receive(std::span<RxPacket> out);
  void release(std::span<const BufferId> buffers);

  // Nothing is at hand and the kernel had no more when it was last asked.
  bool drained() const { return drained_ && next_ == filled_; }

  // Where a packet of the latest burst came from.
  const sockaddr_storage& source(const RxPacket& packet) const { return sources_[packet.source]; }
  socklen_t source_size(const RxPacket& packet) const { return messages_[packet.source].msg_hdr.msg_namelen; }

  uint32_t buffers() const { return pool_->count() - kBurst; }
  uint64_t refused() const { return refused_; }  // ICMP said: nobody listens there
  void add_stats(TransportStats* stats) const;

 private:
  struct Segments {      // of the message being handed out
    uint32_t bytes = 0;  // of each but the last
    uint32_t offset = 0, end = 0;
    PeerId peer = kNoPeer;
    bool congested = false, intact = false;
  };
  void post(uint32_t index);
  void replenish();
  bool fill(uint32_t burst);
  void discard();
  void on_error(int error);
  bool open_message();
  int cut(std::span<RxPacket> out);

  int fd_;
  std::unique_ptr<BufferPool> pool_;
  const UdpPeers* peers_;

  struct alignas(8) Control { std::byte bytes[64]; };
  std::array<mmsghdr, kBurst> messages_{};
  std::array<iovec, kBurst> vectors_{};
  std::array<sockaddr_storage, kBurst> sources_{};
  std::array<Control, kBurst> controls_{};
  std::array<BufferId, kBurst> posted_{};
  uint32_t posted_count_ = 0;  // messages [0, posted_count_) have a buffer
  uint32_t filled_ = 0;        // of those, [0, filled_) were filled by the last recvmmsg
  uint32_t next_ = 0;          // and [0, next_) are handed out
  bool opened_ = false;        // message next_ is being cut
  Segments segments_;
  bool drained_ = false;

  uint64_t packets_ = 0, bytes_ = 0, runts_ = 0, no_buffer_ = 0, congested_ = 0, refused_ = 0;
};

}  // namespace gatun
