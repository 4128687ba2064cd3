// The cases about sleeping: nothing that arrives is slept through, and nothing is allocated while traffic flows.
#include <atomic>
#include <chrono>
#include <thread>

#include "host/transport/waiter.h"
#include "tests/conformance/alloc_count.h"
#include "tests/conformance/conformance_case.h"

namespace gatun::conformance {
namespace {

// One more than any wait that is woken needs; a lost wake-up shows as a wait that lasts so long.
constexpr TimeNs kLong = 20 * kSecond;

std::unique_ptr<Waiter> make_waiter(std::initializer_list<Transport*> transports) {
  auto waiter = Waiter::make();
  REQUIRE(waiter.ok());
  for (Transport* transport : transports) REQUIRE(waiter.value()->add(transport).ok());
  return std::move(waiter.value());
}

bool lasted(std::chrono::steady_clock::time_point since) {
  return std::chrono::steady_clock::now() - since > std::chrono::nanoseconds(kLong / 2);
}

// Takes count packets, sleeping whenever there is none. Returns the number of wake-ups that were lost.
int receive_sleeping(Transport& transport, Waiter& waiter, int count, const std::function<void(const RxPacket&)>& visit) {
  RxPacket burst[kBurst];
  int lost = 0;
  while (count > 0 && lost == 0) {
    const int received = transport.receive(burst);
    for (int i = 0; i < received; ++i) {
      visit(burst[i]);
      transport.release({&burst[i].buffer, 1});
    }
    count -= received;
    if (received > 0) continue;
    const auto since = std::chrono::steady_clock::now();
    waiter.wait(kLong);
    lost += lasted(since);
  }
  return lost;
}

CONFORMANCE_CASE(wait__returns_at_once_when_packets_are_there) {
  auto harness = make_harness(kind, {.links = 2});
  introduce(*harness, 2);
  auto waiter = make_waiter({&harness->hub()});
  RxPacket burst[kBurst];
  for (int round = 0; round < 50; ++round) {
    const TxPacket packet = make_packet({static_cast<uint32_t>(round % 2), 1, 64}, harness->link_place(round % 2, 0), 0);
    REQUIRE(harness->link(round % 2).send({&packet, 1}) == 1);
    const auto since = std::chrono::steady_clock::now();
    int received = 0;
    while (received == 0 && !lasted(since)) {
      waiter->wait(kLong);
      received = harness->hub().receive(burst);
    }
    REQUIRE(received == 1);
    REQUIRE_FALSE(lasted(since));
    harness->hub().release({&burst[0].buffer, 1});
  }
}

// The first wait has consumed the news of their arrival; nothing announces them again.
CONFORMANCE_CASE(wait__returns_at_once_while_packets_are_left) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  std::vector<TxPacket> packets;
  for (uint32_t i = 0; i < 10; ++i) packets.push_back(make_packet({0, i, 64 + 64 * i}, harness->link_place(0, i), 0));
  std::vector<TxPacket> answers;
  for (uint32_t i = 0; i < 10; ++i) {
    answers.push_back(make_packet({1, i, 64 + 64 * i}, harness->hub_place(i), harness->peers[0]));
  }
  const auto drain_one_by_one = [](Transport& transport) {
    auto waiter = make_waiter({&transport});
    RxPacket one[1];
    for (int seen = 0; seen < 10;) {
      const auto since = std::chrono::steady_clock::now();
      waiter->wait(kLong);
      REQUIRE_FALSE(lasted(since));
      const int count = transport.receive(one);
      for (int i = 0; i < count; ++i) transport.release({&one[i].buffer, 1});
      seen += count;
    }
  };
  send_all(harness->link(0), packets, [] {});
  drain_one_by_one(harness->hub());
  send_all(harness->hub(), answers, [] {});
  drain_one_by_one(harness->link(0));
}

CONFORMANCE_CASE(wait__times_out_without_packets) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  auto waiter = make_waiter({&harness->hub(), &harness->link(0)});
  RxPacket burst[kBurst];
  for (int round = 0; round < 20; ++round) {
    REQUIRE(harness->hub().receive(burst) == 0);
    REQUIRE(harness->link(0).receive(burst) == 0);
    waiter->wait(kMs);
    waiter->wait(0);
  }
  REQUIRE(waiter->sleeps() >= 10);
}

// Two threads pass one packet to and fro and sleep each time: every lost wake-up would stop them.
CONFORMANCE_CASE(wait__no_wake_up_is_lost_between_two_sleepers) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  constexpr int kRounds = 3000;
  std::vector<TxPacket> up, down;
  for (uint32_t i = 0; i < kPlaces; ++i) {
    up.push_back(make_packet({0, i, 256}, harness->link_place(0, i), 0));
    down.push_back(make_packet({1, i, 256}, harness->hub_place(i), harness->peers[0]));
  }
  auto link_waiter = make_waiter({&harness->link(0)});
  auto hub_waiter = make_waiter({&harness->hub()});
  std::atomic<int> bad{0};
  std::thread worker([&] {
    for (int round = 0; round < kRounds && bad == 0; ++round) {
      bad += harness->link(0).send({&up[round % kPlaces], 1}) != 1;
      bad += receive_sleeping(harness->link(0), *link_waiter, 1, [&](const RxPacket& p) { bad += !intact(p); });
    }
  });
  for (int round = 0; round < kRounds && bad == 0; ++round) {
    bad += receive_sleeping(harness->hub(), *hub_waiter, 1, [&](const RxPacket& p) { bad += !intact(p); });
    bad += harness->hub().send({&down[round % kPlaces], 1}) != 1;
  }
  worker.join();
  REQUIRE(bad == 0);
}

// Many links send at their own pace while the hub sleeps whenever it can.
CONFORMANCE_CASE(wait__no_wake_up_is_lost_from_many_links) {
  constexpr int kLinks = 3, kPackets = 2000, kAhead = 32;
  auto harness = make_harness(kind, {.links = kLinks});
  introduce(*harness, kLinks);
  auto waiter = make_waiter({&harness->hub()});
  std::vector<std::vector<TxPacket>> up(kLinks);
  for (uint32_t link = 0; link < kLinks; ++link) {
    for (uint32_t i = 0; i < kPlaces; ++i) up[link].push_back(make_packet({link, i, 128}, harness->link_place(link, i), 0));
  }
  std::atomic<int> bad{0};
  std::atomic<int> seen[kLinks] = {};
  std::vector<std::thread> workers;
  for (int link = 0; link < kLinks; ++link) {
    workers.emplace_back([&, link] {
      for (int i = 0; i < kPackets && bad == 0;) {
        if (i - seen[link] >= kAhead) {
          std::this_thread::yield();
          continue;
        }
        i += harness->link(link).send({&up[link][i % kPlaces], 1});
        if (i % 7 == 0) std::this_thread::yield();
      }
    });
  }
  bad += receive_sleeping(harness->hub(), *waiter, kLinks * kPackets, [&](const RxPacket& packet) {
    bad += !intact(packet);
    ++seen[label_of(packet).link];
  });
  for (std::thread& worker : workers) worker.join();
  REQUIRE(bad == 0);
  for (const auto& count : seen) REQUIRE(count == kPackets);
}

CONFORMANCE_CASE(send_receive__allocate_nothing) {
  constexpr int kLinks = 3;
  auto harness = make_harness(kind, {.links = kLinks});
  introduce(*harness, kLinks);
  auto waiter = make_waiter({&harness->hub()});
  std::vector<TxPacket> up, down;
  std::vector<std::byte> elsewhere(1024);
  for (uint32_t i = 0; i < kBurst; ++i) {
    up.push_back(make_packet({0, i, 1024}, i % 8 == 0 ? elsewhere.data() : harness->link_place(0, i), 0));
    down.push_back(make_packet({1, i, 1024}, harness->hub_place(i / kLinks), harness->peers[i % kLinks]));
  }
  RxPacket burst[kBurst];
  int received = 0;
  const uint64_t before = allocations();
  const auto since = std::chrono::steady_clock::now();
  // A network card may need longer than the loop.
  for (int round = 0; round < 200 || (received <= 5000 && !lasted(since)); ++round) {
    for (int link = 0; link < kLinks; ++link) harness->link(link).send(up);
    for (int tries = 0; tries < 10; ++tries) {
      const int count = harness->hub().receive(burst);
      received += count;
      for (int i = 0; i < count; ++i) harness->hub().release({&burst[i].buffer, 1});
    }
    harness->hub().send(down);
    for (int link = 0; link < kLinks; ++link) {
      const int count = harness->link(link).receive(burst);
      received += count;
      for (int i = 0; i < count; ++i) harness->link(link).release({&burst[i].buffer, 1});
    }
    waiter->wait(round % 10 == 0 ? 10 * kUs : 0);
    waiter->wake();
    harness->hub().stats();
  }
  const uint64_t after = allocations();
  REQUIRE(received > 5000);
  REQUIRE(after == before);
}

}  // namespace
}  // namespace gatun::conformance
