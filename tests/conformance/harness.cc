#include "tests/conformance/harness.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

namespace gatun::conformance {

namespace {

// A cheap generator whose bytes depend on all of the label.
struct Filler {
  explicit Filler(const Label& label) : state(label.link * 0x9e3779b9u ^ label.number * 0x85ebca6bu ^ label.payload_bytes) {}
  std::byte next() {
    state = state * 1664525u + 1013904223u;
    return static_cast<std::byte>(state >> 24);
  }
  uint32_t state;
};

constexpr uint32_t kMagic = 0x67617475;

}  // namespace

void introduce(Harness& harness, int links) {
  harness.peers.assign(links, kNoPeer);
  for (int i = 0; i < links; ++i) {
    const TxPacket hello = make_packet({.link = static_cast<uint32_t>(i)}, nullptr, 0);
    REQUIRE(harness.link(i).send({&hello, 1}) == 1);
    receive_some(harness.hub(), 1, [&](const RxPacket& packet) {
      REQUIRE(intact(packet));
      harness.peers[label_of(packet).link] = packet.peer != kNoPeer ? packet.peer : harness.hub().adopt(packet);
    });
  }
  for (PeerId peer : harness.peers) REQUIRE(peer != kNoPeer);
}

TxPacket make_packet(const Label& label, std::byte* place, PeerId peer) {
  TxPacket packet;
  std::memset(packet.head, 0, sizeof(packet.head));
  const uint32_t words[4] = {kMagic, label.link, label.number, label.payload_bytes};
  std::memcpy(packet.head, words, sizeof(words));
  Filler filler(label);
  for (uint32_t i = 0; i < label.payload_bytes; ++i) place[i] = filler.next();
  packet.payload = place;
  packet.payload_bytes = label.payload_bytes;
  packet.peer = peer;
  return packet;
}

Label label_of(const RxPacket& packet) {
  uint32_t words[4];
  std::memcpy(words, packet.head, sizeof(words));
  return {words[1], words[2], words[3]};
}

bool intact(const RxPacket& packet) {
  uint32_t words[4];
  std::memcpy(words, packet.head, sizeof(words));
  if (words[0] != kMagic || words[3] != packet.payload_bytes) return false;
  Filler filler(label_of(packet));
  for (uint32_t i = 0; i < packet.payload_bytes; ++i) {
    if (packet.payload[i] != filler.next()) return false;
  }
  return true;
}

void send_all(Transport& from, std::span<const TxPacket> packets, const std::function<void()>& relieve) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!packets.empty()) {
    const int taken = from.send(packets.first(std::min<size_t>(packets.size(), kBurst)));
    REQUIRE(taken >= 0);
    packets = packets.subspan(taken);
    if (packets.empty()) return;
    relieve();
    REQUIRE(std::chrono::steady_clock::now() < give_up);
  }
}

int receive_some(Transport& at, int count, const std::function<void(const RxPacket&)>& visit) {
  RxPacket burst[kBurst];
  int seen = 0;
  auto last = std::chrono::steady_clock::now();
  while (seen < count && std::chrono::steady_clock::now() - last < std::chrono::seconds(1)) {
    const int room = std::min(count - seen, kBurst);
    const int received = at.receive({burst, static_cast<size_t>(room)});
    REQUIRE(received <= room);
    for (int i = 0; i < received; ++i) {
      visit(burst[i]);
      at.release({&burst[i].buffer, 1});
    }
    seen += received;
    if (received > 0) {
      last = std::chrono::steady_clock::now();
    } else {
      std::this_thread::yield();
    }
  }
  return seen;
}

}  // namespace gatun::conformance
