#include "host/transport/lossy.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <vector>

namespace gatun {
namespace {

constexpr uint32_t kPayload = 256;

// What was sent comes back from receive, in order, in buffers that are counted.
class Mirror final : public Transport {
 public:
  explicit Mirror(bool reliable = false) : reliable_(reliable) {}
  TransportCaps caps() const override { return {.name = "mirror", .reliable = reliable_, .payload_bytes_max = kPayload}; }
  int receive(std::span<RxPacket> out) override {
    int count = 0;
    while (count < static_cast<int>(out.size()) && !queue_.empty()) {
      const BufferId id = next_++;
      auto& bytes = held_[id] = std::move(queue_.front());
      queue_.pop_front();
      out[count++] = {.head = bytes.data(), .payload = bytes.data() + kHeaderBytes,
                      .payload_bytes = static_cast<uint32_t>(bytes.size() - kHeaderBytes), .peer = 0, .buffer = id};
    }
    return count;
  }
  void release(std::span<const BufferId> buffers) override {
    for (BufferId id : buffers) REQUIRE(held_.erase(id) == 1);
  }
  int send(std::span<const TxPacket> packets) override {
    int taken = 0;
    for (const TxPacket& packet : packets) {
      if (room == 0) break;
      --room;
      std::vector<std::byte> bytes(packet.head, packet.head + kHeaderBytes);
      bytes.insert(bytes.end(), packet.payload, packet.payload + packet.payload_bytes);
      queue_.push_back(std::move(bytes));
      ++taken;
    }
    return taken;
  }
  PeerId adopt(const RxPacket&) override { return 0; }
  void forget(PeerId) override {}
  bool prepare_wait() override { return queue_.empty(); }
  int wait_fd() const override { return -1; }
  void finish_wait() override {}
  TransportStats stats() const override { return {}; }

  size_t held() const { return held_.size(); }
  int room = 1 << 30;

 private:
  bool reliable_;
  std::deque<std::vector<std::byte>> queue_;
  std::map<BufferId, std::vector<std::byte>> held_;
  BufferId next_ = 0;
};

TxPacket make_packet(uint32_t number, const std::vector<std::byte>& payload) {
  TxPacket packet;
  std::memset(packet.head, 0, kHeaderBytes);
  std::memcpy(packet.head, &number, sizeof(number));
  packet.payload = payload.data();
  packet.payload_bytes = static_cast<uint32_t>(payload.size());
  packet.peer = 0;
  return packet;
}

struct Run {
  std::vector<uint32_t> order;  // as received
  int wrong_bits = 0;           // over all packets
  int wrong_packets = 0;
  LossyStats faults;
};

Run run(const LossyOptions& options, uint32_t packets, bool reliable = false) {
  Mirror mirror(reliable);
  auto lossy = std::move(Lossy::make(&mirror, options).value());
  const std::vector<std::byte> payload(kPayload, std::byte{0x55});
  Run result;
  RxPacket burst[8];
  for (uint32_t number = 0; number < packets; ++number) {
    const TxPacket packet = make_packet(number, payload);
    REQUIRE(lossy->send({&packet, 1}) == 1);
    const int count = lossy->receive(burst);
    for (int i = 0; i < count; ++i) {
      int wrong = 0;
      for (uint32_t k = 4; k < kHeaderBytes; ++k) wrong += std::popcount(std::to_integer<unsigned>(burst[i].head[k]));
      for (uint32_t k = 0; k < burst[i].payload_bytes; ++k) {
        wrong += std::popcount(std::to_integer<unsigned>(burst[i].payload[k] ^ std::byte{0x55}));
      }
      result.wrong_bits += wrong;
      result.wrong_packets += wrong > 0;
      uint32_t label;
      std::memcpy(&label, burst[i].head, sizeof(label));
      result.order.push_back(label);
      lossy->release({&burst[i].buffer, 1});
    }
  }
  REQUIRE(mirror.held() == 0);
  result.faults = lossy->faults();
  return result;
}

TEST_CASE("send__without_faults_changes_nothing", "[lossy]") {
  const Run result = run({}, 100);
  REQUIRE(result.order.size() == 100);
  for (uint32_t i = 0; i < 100; ++i) REQUIRE(result.order[i] == i);
}

TEST_CASE("send__same_seed_same_faults", "[lossy]") {
  const LossyRates rates{.drop = 0.1, .duplicate = 0.1, .hold = 0.1, .corrupt = 0.1};
  const Run a = run({.seed = 5, .send = rates, .receive = rates}, 2000);
  const Run b = run({.seed = 5, .send = rates, .receive = rates}, 2000);
  const Run c = run({.seed = 6, .send = rates, .receive = rates}, 2000);
  REQUIRE(a.order == b.order);
  REQUIRE(a.order != c.order);
}

TEST_CASE("send__drops_its_share", "[lossy]") {
  for (bool sending : {true, false}) {
    LossyOptions options;
    (sending ? options.send : options.receive).drop = 0.25;
    const Run result = run(options, 4000);
    REQUIRE(result.faults.dropped + result.order.size() == 4000);
    REQUIRE(result.faults.dropped > 850);
    REQUIRE(result.faults.dropped < 1150);
  }
}

TEST_CASE("send__duplicates_its_share", "[lossy]") {
  for (bool sending : {true, false}) {
    LossyOptions options;
    (sending ? options.send : options.receive).duplicate = 0.25;
    const Run result = run(options, 4000);
    REQUIRE(result.faults.duplicated > 850);
    std::map<uint32_t, int> times;
    for (uint32_t number : result.order) ++times[number];
    REQUIRE(times.size() == 4000);
    for (const auto& [number, count] : times) REQUIRE(count <= 2);
    REQUIRE(result.order.size() >= 3984 + result.faults.duplicated - 16);
  }
}

TEST_CASE("send__held_packets_are_overtaken_but_not_for_ever", "[lossy]") {
  for (bool sending : {true, false}) {
    LossyOptions options{.hold_packets_max = 8};
    (sending ? options.send : options.receive).hold = 0.2;
    const Run result = run(options, 4000);
    REQUIRE(result.faults.held > 600);
    REQUIRE(std::set<uint32_t>(result.order.begin(), result.order.end()).size() >= 4000 - 8);
    REQUIRE(result.order.size() <= 4000);
    size_t overtaken = 0;
    for (size_t i = 0; i < result.order.size(); ++i) {
      overtaken += i > 0 && result.order[i] < result.order[i - 1];
      REQUIRE(result.order[i] + 20 >= i);
    }
    REQUIRE(overtaken > 300);
  }
}

TEST_CASE("send__corrupts_one_bit_of_a_copy", "[lossy]") {
  for (bool sending : {true, false}) {
    LossyOptions options;
    (sending ? options.send : options.receive).corrupt = 0.25;
    const Run result = run(options, 4000);
    REQUIRE(result.order.size() == 4000);
    REQUIRE(result.faults.corrupted > 850);
    REQUIRE(result.wrong_bits == result.wrong_packets);  // at most one each; the label's own bits are not counted
    REQUIRE(result.wrong_packets > 800);
  }
}

TEST_CASE("send__never_corrupts_a_reliable_transport", "[lossy]") {
  const LossyRates rates{.corrupt = 0.5};
  const Run result = run({.send = rates, .receive = rates}, 1000, true);
  REQUIRE(result.faults.corrupted == 0);
  REQUIRE(result.wrong_bits == 0);
}

TEST_CASE("send__no_room_is_passed_on", "[lossy]") {
  Mirror mirror;
  auto lossy = std::move(Lossy::make(&mirror, {.send = {.duplicate = 0.5}}).value());
  std::vector<TxPacket> packets;
  const std::vector<std::byte> payload(16);
  for (uint32_t i = 0; i < 20; ++i) packets.push_back(make_packet(i, payload));
  mirror.room = 5;
  const int taken = lossy->send(packets);
  REQUIRE(taken > 0);
  REQUIRE(taken <= 5);
  REQUIRE(lossy->send(std::span(packets).subspan(taken)) == 0);
  mirror.room = 100;
  REQUIRE(lossy->send(std::span(packets).subspan(taken)) == 20 - taken);
}

TEST_CASE("receive__copies_are_bounded", "[lossy]") {
  Mirror mirror;
  auto lossy = std::move(Lossy::make(&mirror, {.receive = {.hold = 1.0}, .hold_packets_max = 1000000, .copies = 4}).value());
  const std::vector<std::byte> payload(16);
  RxPacket burst[kBurst];
  int seen = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    const TxPacket packet = make_packet(i, payload);
    lossy->send({&packet, 1});
    const int count = lossy->receive(burst);
    for (int k = 0; k < count; ++k) lossy->release({&burst[k].buffer, 1});
    seen += count;
  }
  REQUIRE(seen == 96);  // when no copy is free, packets pass
}

}  // namespace
}  // namespace gatun
