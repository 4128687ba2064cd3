// The case about processes: a worker that is killed in the middle of its traffic disturbs neither the hub nor the others.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "host/transport/waiter.h"
#include "tests/conformance/conformance_case.h"

namespace gatun::conformance {
namespace {

// In the child: only its own link is used, and nothing of the test framework.
[[noreturn]] void flood(Transport& link, const std::vector<TxPacket>& packets) {
  RxPacket burst[kBurst];
  for (;;) {
    link.send(packets);
    const int count = link.receive(burst);
    for (int i = 0; i < count; ++i) link.release({&burst[i].buffer, 1});
  }
}

CONFORMANCE_CASE(receive__survives_a_killed_peer) {
  if (kind == "verbs") return;  // a queue pair stays with the process that made it; tests/rdma kills whole ranks
  if (kind.starts_with("vhost") || kind == "virtio" || kind == "memif") return;  // the links share a device
  constexpr int kVictims = 4;
  auto harness = make_harness(kind, {.links = kVictims + 1});
  introduce(*harness, kVictims + 1);
  auto waiter = Waiter::make();
  REQUIRE(waiter.value()->add(&harness->hub()).ok());
  RxPacket burst[kBurst];
  for (int victim = 0; victim < kVictims; ++victim) {
    std::vector<TxPacket> packets;
    for (uint32_t i = 0; i < 16; ++i) {
      packets.push_back(make_packet({static_cast<uint32_t>(victim), i, 1024}, harness->link_place(victim, i), 0));
    }
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) flood(harness->link(victim), packets);

    // Echo its traffic for a while, then kill it at a moment that nobody chose, and go on as if nothing had happened.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    int seen = 0, broken = 0;
    const auto turn = [&] {
      const int count = harness->hub().receive(burst);
      for (int i = 0; i < count; ++i) {
        broken += !intact(burst[i]);
        TxPacket answer;
        std::copy(burst[i].head, burst[i].head + kHeaderBytes, answer.head);
        answer.payload = harness->hub_place(0);
        answer.payload_bytes = 512;
        answer.peer = burst[i].peer;
        harness->hub().send({&answer, 1});
        harness->hub().release({&burst[i].buffer, 1});
      }
      seen += count;
      if (count == 0) waiter.value()->wait(kMs);
    };
    while (seen < 500 && std::chrono::steady_clock::now() < give_up) turn();
    REQUIRE(::kill(child, SIGKILL) == 0);
    for (int i = 0; i < 50; ++i) turn();
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    for (int i = 0; i < 50; ++i) turn();
    REQUIRE(seen >= 500);
    REQUIRE(broken == 0);
    harness->hub().forget(harness->peers[victim]);

    const auto survivor = static_cast<uint32_t>(kVictims);
    const TxPacket up = make_packet({survivor, 7, 512}, harness->link_place(kVictims, 0), 0);
    REQUIRE(harness->link(kVictims).send({&up, 1}) == 1);
    bool heard = false;
    const auto deaf = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!heard && std::chrono::steady_clock::now() < deaf) {  // what the victim left behind comes first
      receive_some(harness->hub(), 1, [&](const RxPacket& packet) { heard = label_of(packet).link == survivor; });
    }
    REQUIRE(heard);
    const TxPacket down = make_packet({9, 8, 512}, harness->hub_place(1), harness->peers[kVictims]);
    REQUIRE(harness->hub().send({&down, 1}) == 1);
    REQUIRE(receive_some(harness->link(kVictims), 1, [](const RxPacket& packet) { REQUIRE(intact(packet)); }) == 1);
  }
}

}  // namespace
}  // namespace gatun::conformance
