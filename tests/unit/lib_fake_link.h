// FakeLink: a transport that a test writes and reads by hand. What is sent is kept; what the test pushes is received.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "host/base/os.h"
#include "host/transport/transport.h"
#include "protocols/wire.h"

namespace gatun {

class FakeLink final : public Transport {
 public:
  struct Packet {
    Header header;
    std::vector<std::byte> payload;
    const std::byte* at = nullptr;       // where it lay
    const std::byte* seen_at = nullptr;  // TxPacket's
  };

  explicit FakeLink(bool reliable = true, size_t arena_bytes = 0)
      : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), reliable_(reliable), arena_(arena_bytes) {}

  std::deque<Packet> sent;
  int room = 1 << 30;  // packets that send() still takes
  std::vector<int> cores;
  bool lends = false;
  std::vector<std::span<std::byte>> lent;
  Status lend_status;  // what lend() says
  int taken_all_back = 0;

  void push(const Header& header, std::vector<std::byte> payload, bool damaged = false, PeerId peer = 0) {
    Stored& stored = received_.emplace_back();
    stored.payload = std::move(payload);
    stored.peer = peer;
    encode(header, stored.payload.data(), static_cast<uint32_t>(stored.payload.size()), true, stored.head);
    if (damaged) stored.head[28] ^= std::byte{1};
  }
  // Where the latest receive() has its i-th payload.
  const std::byte* delivered(size_t i) const { return delivered_.at(i).payload.data(); }
  // The last packet that was sent, as its RESULT.
  Packet answer_to(const Packet& packet) const {
    Packet answer = packet;
    answer.header.type = PacketType::kResult;
    answer.header.child = 0;
    return answer;
  }

  TransportCaps caps() const override {
    return {.name = "fake", .reliable = reliable_, .payload_bytes_max = 65536, .cores = cores, .lends = lends};
  }
  int receive(std::span<RxPacket> out) override {
    delivered_.clear();
    int count = 0;
    while (!received_.empty() && count < static_cast<int>(out.size())) {
      delivered_.push_back(std::move(received_.front()));
      received_.pop_front();
      ++count;
    }
    for (int i = 0; i < count; ++i) {
      const Stored& stored = delivered_[static_cast<size_t>(i)];
      out[static_cast<size_t>(i)] = {.head = stored.head,
                                     .payload = stored.payload.data(),
                                     .payload_bytes = static_cast<uint32_t>(stored.payload.size()),
                                     .peer = stored.peer,
                                     .checksummed = !reliable_};
    }
    return count;
  }
  void release(std::span<const BufferId>) override {}
  int send(std::span<const TxPacket> packets) override {
    int taken = 0;
    for (const TxPacket& packet : packets) {
      if (room == 0) break;
      --room;
      ++taken;
      Packet& copy = sent.emplace_back();
      copy.at = packet.payload;
      copy.seen_at = packet.seen_at;
      copy.payload.assign(packet.payload, packet.payload + packet.payload_bytes);
      decode(packet.head, packet.payload, packet.payload_bytes, !reliable_, &copy.header);
    }
    return taken;
  }
  std::span<std::byte> arena(PeerId) override { return arena_; }
  Status lend(std::span<std::byte> memory) override {
    if (lend_status.ok()) lent.push_back(memory);
    return lend_status;
  }
  Status take_back(std::span<std::byte> memory) override {
    std::erase_if(lent, [&](std::span<std::byte> one) { return one.data() == memory.data(); });
    return {};
  }
  void take_all_back() override { ++taken_all_back; }
  PeerId adopt(const RxPacket&) override { return 0; }
  void forget(PeerId) override {}
  bool prepare_wait() override { return received_.empty(); }
  int wait_fd() const override { return *event_; }
  void finish_wait() override {}
  TransportStats stats() const override { return {}; }

 private:
  struct Stored {
    std::byte head[kHeaderBytes];
    std::vector<std::byte> payload;
    PeerId peer = 0;
  };
  Fd event_;
  bool reliable_;
  std::vector<std::byte> arena_;
  std::deque<Stored> received_;
  std::vector<Stored> delivered_;
};

}  // namespace gatun
