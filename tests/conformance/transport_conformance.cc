// The cases that every transport passes unchanged: what is sent arrives whole, from whom it came, and can be held.
#include <catch2/catch.hpp>
#include <algorithm>
#include <map>
#include <set>

#include "tests/conformance/conformance_case.h"
#include "tests/conformance/harness.h"

namespace gatun::conformance {
namespace {

// The boundaries where a size can go wrong, and a walk over the rest.
std::vector<uint32_t> sizes_up_to(uint32_t bytes_max) {
  std::set<uint32_t> sizes;
  for (uint32_t size = 0; size <= 130 && size <= bytes_max; ++size) sizes.insert(size);
  for (uint64_t edge = 256; edge < bytes_max; edge *= 2) {
    for (int delta = -1; delta <= 1; ++delta) sizes.insert(static_cast<uint32_t>(edge + delta));
  }
  for (uint32_t edge : {1440u, 1472u, 1500u, 4064u, 8940u, bytes_max - 64, bytes_max - 1, bytes_max}) {
    if (edge <= bytes_max) sizes.insert(edge);
  }
  for (uint32_t size = 333; size < bytes_max; size += 1 + bytes_max / 37) sizes.insert(size);
  return {sizes.begin(), sizes.end()};
}

CONFORMANCE_CASE(send__every_size_arrives_whole) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  for (const uint32_t size : sizes_up_to(harness->payload_bytes_max())) {
    CAPTURE(size);
    const TxPacket up = make_packet({0, size, size}, harness->link_place(0, 0), 0);
    REQUIRE(harness->link(0).send({&up, 1}) == 1);
    REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& packet) {
              REQUIRE(packet.payload_bytes == size);
              REQUIRE(packet.peer == harness->peers[0]);
              REQUIRE(intact(packet));
            }) == 1);
    const TxPacket down = make_packet({9, size, size}, harness->hub_place(0), harness->peers[0]);
    REQUIRE(harness->hub().send({&down, 1}) == 1);
    REQUIRE(receive_some(harness->link(0), 1, [&](const RxPacket& packet) {
              REQUIRE(packet.payload_bytes == size);
              REQUIRE(intact(packet));
            }) == 1);
  }
}

CONFORMANCE_CASE(send__mixed_sizes_in_one_burst) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  const uint32_t most = std::min(harness->payload_bytes_max(), 4096u);
  uint32_t random = 1;
  for (uint32_t round = 0; round < 20; ++round) {
    std::vector<TxPacket> packets;
    std::map<uint32_t, int> expected;
    for (uint32_t i = 0; i < kBurst; ++i) {
      random = random * 1664525u + 1013904223u;
      const uint32_t pick = random >> 28;  // many equal ones, some header-only, some odd
      const uint32_t size = pick < 8 ? most : pick < 10 ? 0 : pick < 12 ? most / 2 : (random >> 8) % most;
      packets.push_back(make_packet({0, round * kBurst + i, size}, harness->link_place(0, i), 0));
      ++expected[round * kBurst + i];
    }
    send_all(harness->link(0), packets, [] {});
    REQUIRE(receive_some(harness->hub(), kBurst, [&](const RxPacket& packet) {
              REQUIRE(intact(packet));
              --expected[label_of(packet).number];
            }) == kBurst);
    for (const auto& [number, missing] : expected) REQUIRE(missing == 0);
  }
}

CONFORMANCE_CASE(send__bursts_both_ways_with_many_peers) {
  constexpr int kLinks = 5;
  auto harness = make_harness(kind, {.links = kLinks});
  introduce(*harness, kLinks);
  const uint32_t size = std::min(harness->payload_bytes_max(), 2048u);
  constexpr uint32_t kEach = 16;
  for (uint32_t round = 0; round < 30; ++round) {
    for (int link = 0; link < kLinks; ++link) {
      std::vector<TxPacket> up;
      for (uint32_t i = 0; i < kEach; ++i) {
        up.push_back(make_packet({static_cast<uint32_t>(link), i, size - i * 64}, harness->link_place(link, i), 0));
      }
      send_all(harness->link(link), up, [] {});
    }
    std::map<std::pair<uint32_t, uint32_t>, int> seen;
    REQUIRE(receive_some(harness->hub(), kLinks * kEach, [&](const RxPacket& packet) {
              REQUIRE(intact(packet));
              REQUIRE(packet.peer == harness->peers[label_of(packet).link]);
              ++seen[{label_of(packet).link, label_of(packet).number}];
            }) == kLinks * kEach);
    REQUIRE(seen.size() == kLinks * kEach);

    // As a switch answers: chunk by chunk, each to all, the same bytes.
    std::vector<TxPacket> down;
    for (uint32_t i = 0; i < kEach; ++i) {
      TxPacket packet = make_packet({99, i, size}, harness->hub_place(i), 0);
      for (int link = 0; link < kLinks; ++link) {
        packet.peer = harness->peers[link];
        down.push_back(packet);
      }
    }
    send_all(harness->hub(), down, [] {});
    for (int link = 0; link < kLinks; ++link) {
      std::set<uint32_t> numbers;
      REQUIRE(receive_some(harness->link(link), kEach, [&](const RxPacket& packet) {
                REQUIRE(intact(packet));
                numbers.insert(label_of(packet).number);
              }) == kEach);
      REQUIRE(numbers.size() == kEach);
    }
  }
}

// Where peers share memory, or a network card writes into it, a payload is seen where it was put: at the same place of the
// arena each time, and with no buffer that it could have been copied to.
CONFORMANCE_CASE(send__payload_in_the_arena_is_not_copied) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  if (harness->link(0).arena(0).empty()) return;
  const uint32_t size = harness->payload_bytes_max();
  const auto address_of = [&](Transport& from, Transport& to, const TxPacket& packet) {
    uintptr_t address = 0;
    REQUIRE(from.send({&packet, 1}) == 1);
    REQUIRE(receive_some(to, 1, [&](const RxPacket& received) {
              REQUIRE(intact(received));
              REQUIRE(received.buffer == kNoBuffer);
              address = reinterpret_cast<uintptr_t>(received.payload);
            }) == 1);
    return address;
  };
  uintptr_t up = 0, down = 0;
  for (uint32_t i = 0; i < 3 * kPlaces; ++i) {
    const size_t offset = size_t{i % kPlaces} * size;
    const uintptr_t up_now =
        address_of(harness->link(0), harness->hub(), make_packet({0, i, size}, harness->link_place(0, i), 0));
    const uintptr_t down_now =
        address_of(harness->hub(), harness->link(0), make_packet({9, i, size}, harness->hub_place(i), harness->peers[0]));
    if (i == 0) up = up_now, down = down_now;
    REQUIRE(up_now == up + offset);
    REQUIRE(down_now == down + offset);
  }
}

CONFORMANCE_CASE(send__payload_outside_the_arena) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  std::vector<std::byte> elsewhere(harness->payload_bytes_max());
  for (uint32_t i = 0; i < 200; ++i) {
    const uint32_t size = i % 3 == 0 ? harness->payload_bytes_max() : 6 + i;
    const TxPacket up = make_packet({0, i, size}, elsewhere.data(), 0);
    REQUIRE(harness->link(0).send({&up, 1}) == 1);
    std::fill(elsewhere.begin(), elsewhere.end(), std::byte{0xee});  // it is the caller's again
    REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& packet) {
              REQUIRE(intact(packet));
              // Echo from the received packet's own memory, as the answer to a probe.
              TxPacket echo;
              std::copy(packet.head, packet.head + kHeaderBytes, echo.head);
              echo.payload = packet.payload;
              echo.payload_bytes = packet.payload_bytes;
              echo.peer = packet.peer;
              REQUIRE(harness->hub().send({&echo, 1}) == 1);
            }) == 1);
    REQUIRE(receive_some(harness->link(0), 1, [&](const RxPacket& packet) { REQUIRE(intact(packet)); }) == 1);
  }
}

CONFORMANCE_CASE(send__refuses_what_is_too_large_or_for_nobody) {
  auto harness = make_harness(kind, {.links = 2});
  introduce(*harness, 2);
  std::vector<std::byte> big(70000);
  const uint64_t dropped = harness->link(0).stats().dropped_send;
  TxPacket packets[3] = {make_packet({0, 1, 100}, harness->link_place(0, 0), 0),
                         make_packet({0, 2, 70000}, big.data(), 0),
                         make_packet({0, 3, 100}, harness->link_place(0, 1), 0)};
  REQUIRE(harness->link(0).send(packets) == 3);
  std::set<uint32_t> numbers;
  REQUIRE(receive_some(harness->hub(), 2, [&](const RxPacket& p) { numbers.insert(label_of(p).number); }) == 2);
  REQUIRE(numbers == std::set<uint32_t>{1, 3});
  REQUIRE(harness->link(0).stats().dropped_send == dropped + 1);
  REQUIRE(harness->link(0).stats().dropped_oversize == 1);

  const uint64_t hub_dropped = harness->hub().stats().dropped_send;
  TxPacket lost[3] = {make_packet({7, 1, 64}, harness->hub_place(0), kNoPeer),
                      make_packet({7, 2, 64}, harness->hub_place(1), 12345),
                      make_packet({7, 3, 64}, harness->hub_place(2), harness->peers[1])};
  REQUIRE(harness->hub().send(lost) == 3);
  REQUIRE(receive_some(harness->link(1), 1, [](const RxPacket& p) { REQUIRE(label_of(p).number == 3); }) == 1);
  REQUIRE(harness->hub().stats().dropped_send == hub_dropped + 2);
}

CONFORMANCE_CASE(receive__honours_the_room_it_is_given) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  std::vector<TxPacket> packets;
  for (uint32_t i = 0; i < 24; ++i) packets.push_back(make_packet({0, i, 512}, harness->link_place(0, i), 0));
  send_all(harness->link(0), packets, [] {});
  std::set<uint32_t> numbers;
  RxPacket one[1];
  REQUIRE(harness->hub().receive({one, 0}) == 0);
  for (int tries = 0; tries < 100000 && numbers.size() < 24; ++tries) {
    if (harness->hub().receive(one) == 0) continue;
    REQUIRE(intact(one[0]));
    numbers.insert(label_of(one[0]).number);
    harness->hub().release({&one[0].buffer, 1});
  }
  REQUIRE(numbers.size() == 24);
}

CONFORMANCE_CASE(receive__buffers_held_long_and_released_out_of_order) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  const uint32_t size = std::min(harness->payload_bytes_max(), 1408u);
  struct Held {
    RxPacket packet;
    Label label;
  };
  std::vector<Held> held;
  std::vector<uint32_t> free_places;
  for (uint32_t place = 0; place < kPlaces; ++place) free_places.push_back(place);
  std::map<uint32_t, uint32_t> place_of;  // by packet number
  for (uint32_t round = 0; round < 40; ++round) {
    std::vector<TxPacket> packets;
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t place = free_places.back();
      free_places.pop_back();
      place_of[round * 16 + i] = place;
      packets.push_back(make_packet({0, round * 16 + i, size}, harness->link_place(0, place), 0));
    }
    send_all(harness->link(0), packets, [] {});
    RxPacket burst[kBurst];
    uint32_t got = 0;
    for (int tries = 0; tries < 100000 && got < 16; ++tries) {
      const int count = harness->hub().receive(burst);
      for (int i = 0; i < count; ++i) {
        held.push_back({burst[i], label_of(burst[i])});
        REQUIRE(intact(burst[i]));
      }
      got += count;
    }
    REQUIRE(got == 16);
    // 48 stay held over many later bursts; which of them go is scattered.
    while (held.size() > 48) {
      const size_t victim = (round * 7 + held.size() * 13) % held.size() % 16;
      Held& h = held[victim];
      // The head may be gone when there is nothing to release; the payload is not.
      TxPacket expected_head = make_packet(h.label, std::vector<std::byte>(size).data(), 0);
      h.packet.head = expected_head.head;
      REQUIRE(intact(h.packet));
      harness->hub().release({&h.packet.buffer, 1});
      free_places.push_back(place_of[h.label.number]);
      held.erase(held.begin() + victim);
    }
  }
  std::reverse(held.begin(), held.end());
  for (Held& h : held) harness->hub().release({&h.packet.buffer, 1});
  REQUIRE(harness->hub().stats().dropped_no_buffer == 0);
}

CONFORMANCE_CASE(receive__exhausted_buffers_recover) {
  auto harness = make_harness(kind, {.links = 1, .buffers = 8});
  introduce(*harness, 1);
  if (harness->hub().caps().buffers == 0) return;  // holds no packet
  // Nothing is released: at some point packets are dropped and counted, and nothing else happens.
  std::vector<BufferId> held;
  RxPacket burst[kBurst];
  std::vector<std::byte> elsewhere(64);
  for (uint32_t i = 0; i < 3000; ++i) {
    const TxPacket packet = make_packet({0, i, 64}, elsewhere.data(), 0);
    harness->link(0).send({&packet, 1});
    const int count = harness->hub().receive(burst);
    for (int k = 0; k < count; ++k) held.push_back(burst[k].buffer);
  }
  for (int i = 0; i < 100; ++i) {
    const int count = harness->hub().receive(burst);
    for (int k = 0; k < count; ++k) held.push_back(burst[k].buffer);
  }
  REQUIRE(held.size() >= harness->hub().caps().buffers);
  REQUIRE(harness->hub().stats().dropped_no_buffer > 0);
  REQUIRE(harness->hub().stats().dropped_no_buffer + held.size() >= 3000);
  harness->hub().release(held);
  for (uint32_t i = 0; i < 100; ++i) {
    const TxPacket packet = make_packet({0, i, 64}, elsewhere.data(), 0);
    send_all(harness->link(0), {&packet, 1}, [] {});
    REQUIRE(receive_some(harness->hub(), 1, [](const RxPacket& p) { REQUIRE(intact(p)); }) == 1);
  }
}

CONFORMANCE_CASE(adopt__forgotten_peers_can_come_back) {
  if (kind == "shm" || kind == "verbs") return;  // a link that is detached stays so
  auto harness = make_harness(kind, {.links = 3});
  introduce(*harness, 3);
  REQUIRE(std::set<PeerId>(harness->peers.begin(), harness->peers.end()).size() == 3);
  for (int round = 0; round < 10; ++round) {
    for (int link = 0; link < 3; ++link) {
      harness->hub().forget(harness->peers[link]);
      harness->hub().forget(harness->peers[link]);
      const TxPacket packet = make_packet({static_cast<uint32_t>(link), 5, 64}, harness->link_place(link, 0), 0);
      REQUIRE(harness->link(link).send({&packet, 1}) == 1);
      REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& p) {
                REQUIRE(p.peer == kNoPeer);
                harness->peers[link] = harness->hub().adopt(p);
                REQUIRE(harness->hub().adopt(p) == harness->peers[link]);
              }) == 1);
      REQUIRE(harness->peers[link] != kNoPeer);
    }
    REQUIRE(std::set<PeerId>(harness->peers.begin(), harness->peers.end()).size() == 3);
  }
  harness->hub().forget(kNoPeer);
  harness->hub().forget(999999);
}

}  // namespace
}  // namespace gatun::conformance
