// The cases that only DPDK has: what its devices do unasked, each with what Gatun does about it.
//
//   a memif peer that dies crashes this process     a warning: dpdk_spec_test warning__..., dpdk_test.py test_memif_...
//   memif loses frames that need several buffers    dpdk_spec_test fits__... and device_for_mtu__..., kind "memif"
//   memif takes no name a second time               open__memif_again_after_it_was_let_go
//   virtio_user raises SIGPIPE when vhost is gone   kind "virtio", whose end closes after the other
//   vhost must outlive its peers                    dpdk_test.py test_vhost_takes_one_peer_after_another
//   af_packet sends nothing after stop and start    open__a_device_again_after_it_was_closed
//   af_packet drops and cuts long frames            send__jumbo_frames, dpdk_spec_test fits__... and device_for_mtu__...
//   af_packet passes by the queueing discipline     device_for_mtu__..., dpdk_test.py test_lost_packets_... (by tbf)
//   kernels send several packets as one, cut here   health__names_merged_packets_and_the_way_out
//   flows fall on queues that nobody reads          receive__every_queue_of_the_device_is_read
//   two devices on an interface share its frames    open__says_what_is_wrong
//   af_xdp takes the kernel's packets, tap is slow  a warning: dpdk_spec_test warning__...
//   vhost adds up checksums in software             none over IPv4 there; kinds "dpdk6" and "vhost6" have them
//   more pollers than cores                         wait_conformance.cc: what has nothing to do sleeps
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <numeric>
#include <set>
#include <thread>

#include "host/transport/dpdk_module.h"
#include "host/transport/udp.h"
#include "tests/conformance/harness_dpdk.h"
#include "tests/conformance/test_net.h"

namespace gatun::conformance {
namespace {

constexpr uint16_t kPort = 7117;
constexpr const char* kDevice = "net_af_packet0,iface=va 10.77.0.1/24";

bool skipped(const char* name, const std::string& also = "") {
  const std::string missing = missing_for_dpdk("dpdk4");
  if (missing.empty() && also.empty()) return false;
  std::cout << "[skipped] dpdk." << name << ": " << (missing.empty() ? also : missing) << "\n";
  return true;
}

Result<std::shared_ptr<DpdkDevice>> open_in(TestNet& net, const std::string& text) {
  Result<std::shared_ptr<DpdkDevice>> opened{Status(Code::kInternal, "not run")};
  net.run([&] { opened = open_dpdk(text, {.lanes = 1, .buffers = 1024}); });
  return opened;
}

std::unique_ptr<Transport> hub_of(DpdkDevice& device) {
  auto hub = device.make_hub(kPort, 256, 64);
  CAPTURE(hub.status().message());
  REQUIRE(hub.ok());
  return std::move(hub.value());
}

// A kernel socket at vb that talks to the hub.
struct Socket {
  explicit Socket(TestNet& net, int tos = 2, bool first = true) {
    if (first) REQUIRE(net.command("ip addr add 10.77.0.2/24 dev vb"));
    net.run([&] { fd = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); });
    const int on = 1;
    const Endpoint hub = Endpoint::parse("10.77.0.1", kPort).value();
    REQUIRE(::setsockopt(*fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos) == 0);
    REQUIRE(::setsockopt(*fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on) == 0);
    REQUIRE(::connect(*fd, hub.address(), hub.size) == 0);
  }
  Fd fd;
};

TEST_CASE("dpdk.send__jumbo_frames", "[conformance]") {
  if (skipped("send__jumbo_frames")) return;
  for (const char* kind : {"dpdk4", "dpdk6", "vhost", "virtio", "memif"}) {
    auto harness = make_dpdk_harness(kind, {.links = 1, .mtu = 9000});
    introduce(*harness, 1);
    const uint32_t most = harness->payload_bytes_max();
    REQUIRE(most == 8896);
    for (const uint32_t size : {0u, 1408u, 1500u, 2048u, 4096u, most - 1, most}) {
      const TxPacket up = make_packet({0, size, size}, harness->link_place(0, 0), 0);
      REQUIRE(harness->link(0).send({&up, 1}) == 1);
      REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& packet) { REQUIRE(intact(packet)); }) == 1);
      const TxPacket down = make_packet({9, size, size}, harness->hub_place(0), harness->peers[0]);
      REQUIRE(harness->hub().send({&down, 1}) == 1);
      REQUIRE(receive_some(harness->link(0), 1, [&](const RxPacket& packet) { REQUIRE(intact(packet)); }) == 1);
    }
    // af_packet would drop it and call it sent, memif would lose others with it.
    std::vector<std::byte> big(most + 128);
    const TxPacket long_one = make_packet({0, 1, most + 128}, big.data(), 0);
    REQUIRE(harness->link(0).send({&long_one, 1}) == 1);
    REQUIRE(harness->link(0).stats().dropped_oversize == 1);
  }
}

// A result goes to several peers, and the device may take it for some of them only.
TEST_CASE("dpdk.send__a_payload_for_several_that_the_device_took_in_part", "[conformance]") {
  for (const char* kind : {"vhost", "virtio", "memif"}) {
    if (const std::string missing = missing_for_dpdk(kind); !missing.empty()) {
      skipped("send__a_payload_for_several_that_the_device_took_in_part", missing);
      return;
    }
    auto harness = make_dpdk_harness(kind, {.links = 1, .buffers = 2048});
    introduce(*harness, 1);
    constexpr uint32_t kAlike = 3, kPackets = 48;  // a burst of 32 ends in the middle of a payload's packets
    std::vector<TxPacket> packets;
    for (uint32_t i = 0; i < kPackets; ++i) {
      packets.push_back(make_packet({9, i / kAlike, 1000}, harness->hub_place(i / kAlike), harness->peers[0]));
    }
    std::array<uint32_t, kPackets / kAlike> seen{};
    const auto read = [&] {
      receive_some(harness->link(0), 1, [&](const RxPacket& packet) {
        REQUIRE(intact(packet));
        ++seen[label_of(packet).number];
      });
    };
    uint32_t refusals = 0;
    constexpr uint32_t kRounds = 100;  // several times what the device's queue holds
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::span<const TxPacket> rest = packets;  // all at once: several bursts of the device
      for (int tries = 0; !rest.empty() && tries < 1000; ++tries) {
        rest = rest.subspan(static_cast<size_t>(harness->hub().send(rest)));
        if (rest.empty()) break;
        ++refusals;
        read();
      }
      REQUIRE(rest.empty());
    }
    REQUIRE(refusals > 0);
    for (size_t total = 0; total < kRounds * kPackets; total = std::accumulate(seen.begin(), seen.end(), size_t{0})) {
      const size_t before = total;
      read();
      REQUIRE(std::accumulate(seen.begin(), seen.end(), size_t{0}) > before);
    }
    for (const uint32_t count : seen) REQUIRE(count == kAlike * kRounds);
  }
}

TEST_CASE("dpdk.receive__congestion_marks_both_ways", "[conformance]") {
  if (skipped("receive__congestion_marks_both_ways")) return;
  TestNet net;
  auto device = open_in(net, kDevice);
  REQUIRE(device.ok());
  auto hub = hub_of(*device.value());
  for (const int tos : {3, 2}) {  // congestion experienced, and only capable of ECN
    if (tos == 2) REQUIRE(net.command("ip addr flush dev vb"));
    Socket socket(net, tos);
    const TxPacket hello = make_packet({.number = 5}, nullptr, 0);
    REQUIRE(::send(*socket.fd, hello.head, kHeaderBytes, 0) == static_cast<ssize_t>(kHeaderBytes));
    PeerId peer = kNoPeer;
    REQUIRE(receive_some(*hub, 1, [&](const RxPacket& packet) {
              REQUIRE(packet.congested == (tos == 3));
              peer = hub->adopt(packet);
            }) == 1);
    REQUIRE(hub->stats().congested == 1);
    TxPacket answer = make_packet({.number = 6}, nullptr, peer);
    REQUIRE(hub->send({&answer, 1}) == 1);
    std::byte head[kHeaderBytes];
    iovec vector{head, sizeof head};
    alignas(8) std::byte control[64];
    msghdr message{.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = -1;
    for (int tries = 0; got < 0 && tries < 1000; ++tries) {
      got = ::recvmsg(*socket.fd, &message, 0);
      if (got < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(got == static_cast<ssize_t>(kHeaderBytes));
    cmsghdr* mark = CMSG_FIRSTHDR(&message);
    REQUIRE(mark != nullptr);
    REQUIRE((*reinterpret_cast<const uint8_t*>(CMSG_DATA(mark)) & 3) == 2);
  }
}

// A veth passes several packets on as the one that the kernel made of them; the device cuts it.
TEST_CASE("dpdk.health__names_merged_packets_and_the_way_out", "[conformance]") {
  if (skipped("health__names_merged_packets_and_the_way_out")) return;
  TestNet net;
  if (skipped("health__names_merged_packets_and_the_way_out",
              net.command("ethtool -k vb >/dev/null 2>&1") ? "" : "there is no ethtool")) {
    return;
  }
  auto device = open_in(net, kDevice);
  REQUIRE(device.ok());
  auto hub = hub_of(*device.value());
  REQUIRE(net.command("ip addr add 10.77.0.2/24 dev vb"));
  std::unique_ptr<UdpLink> link;
  net.run([&] { link = std::move(UdpLink::make(Endpoint::parse("10.77.0.1", kPort).value(), {}).value()); });
  const TxPacket hello = make_packet({}, nullptr, 0);
  REQUIRE(link->send({&hello, 1}) == 1);
  REQUIRE(receive_some(*hub, 1, [&](const RxPacket& packet) { hub->adopt(packet); }) == 1);
  REQUIRE(hub->health().ok());

  std::vector<std::byte> memory(16 * 1408);
  std::vector<TxPacket> packets;
  for (uint32_t i = 0; i < 16; ++i) packets.push_back(make_packet({0, i, 1408}, memory.data() + 1408 * i, 0));
  REQUIRE(link->send(packets) == 16);
  receive_some(*hub, 1, [](const RxPacket&) { FAIL("part of a merged packet was taken for a packet"); });
  const Status health = hub->health();
  REQUIRE_FALSE(health.ok());
  REQUIRE_THAT(health.message(), Catch::Contains("ethtool -K"));
  REQUIRE(hub->health().ok());  // said once

  REQUIRE(net.command("ethtool -K vb tx off gso off tx-udp-segmentation off >/dev/null"));
  REQUIRE(link->send(packets) == 16);
  std::set<uint32_t> numbers;
  receive_some(*hub, 16, [&](const RxPacket& packet) {
    REQUIRE(intact(packet));
    numbers.insert(label_of(packet).number);
  });
  REQUIRE(numbers.size() == 16);
}

// The kernel spreads flows over all queues of a device, also over those that nobody reads.
TEST_CASE("dpdk.receive__every_queue_of_the_device_is_read", "[conformance]") {
  if (skipped("receive__every_queue_of_the_device_is_read")) return;
  TestNet net;
  auto device = open_in(net, "net_af_packet0,iface=va,qpairs=4 10.77.0.1/24");
  REQUIRE(device.ok());
  auto hub = hub_of(*device.value());
  constexpr uint32_t kFlows = 32;  // that they all fall on one of four queues has a chance of 4 in 4^32
  std::vector<std::unique_ptr<Socket>> sockets;
  for (uint32_t i = 0; i < kFlows; ++i) {
    sockets.push_back(std::make_unique<Socket>(net, 2, i == 0));
    const TxPacket hello = make_packet({.number = i}, nullptr, 0);
    REQUIRE(::send(*sockets[i]->fd, hello.head, kHeaderBytes, 0) == static_cast<ssize_t>(kHeaderBytes));
    REQUIRE(receive_some(*hub, 1, [&](const RxPacket& packet) { REQUIRE(label_of(packet).number == i); }) == 1);
  }
}

// af_packet sends nothing after a stop and a start, and says that it does.
TEST_CASE("dpdk.open__a_device_again_after_it_was_closed", "[conformance]") {
  if (skipped("open__a_device_again_after_it_was_closed")) return;
  TestNet net;
  Socket socket(net);
  for (int round = 0; round < 3; ++round) {
    auto device = open_in(net, kDevice);
    CAPTURE(round, device.status().message());
    REQUIRE(device.ok());
    auto hub = hub_of(*device.value());
    const TxPacket hello = make_packet({.number = 5}, nullptr, 0);
    REQUIRE(::send(*socket.fd, hello.head, kHeaderBytes, 0) == static_cast<ssize_t>(kHeaderBytes));
    PeerId peer = kNoPeer;
    REQUIRE(receive_some(*hub, 1, [&](const RxPacket& packet) { peer = hub->adopt(packet); }) == 1);
    const TxPacket answer = make_packet({.number = 6}, nullptr, peer);
    REQUIRE(hub->send({&answer, 1}) == 1);
    std::byte head[kHeaderBytes];
    ssize_t got = -1;
    for (int tries = 0; got < 0 && tries < 1000; ++tries) {
      got = ::recv(*socket.fd, head, sizeof head, 0);
      if (got < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(got == static_cast<ssize_t>(kHeaderBytes));
  }
}

// memif keeps the name of a device that was removed, and its socket.
TEST_CASE("dpdk.open__memif_again_after_it_was_let_go", "[conformance]") {
  if (const std::string missing = missing_for_dpdk("memif"); !missing.empty()) {
    skipped("open__memif_again_after_it_was_let_go", missing);
    return;
  }
  const std::string device =
      "net_memif99,role=server,socket=/tmp/gatun-memif-" + std::to_string(::getpid()) + " 10.77.0.1/24";
  for (int round = 0; round < 2; ++round) {
    const auto opened = open_dpdk(device, {.lanes = 1, .buffers = 1024});
    CAPTURE(round, opened.status().message());
    REQUIRE(opened.ok());
    REQUIRE(opened.value()->make_hub(kPort, 256, 64).ok());
  }
}

TEST_CASE("dpdk.open__says_what_is_wrong", "[conformance]") {
  if (skipped("open__says_what_is_wrong")) return;
  TestNet net;
  const auto complaint = [&](const std::string& text) {
    const auto opened = open_in(net, text);
    CAPTURE(text);
    REQUIRE_FALSE(opened.ok());
    return std::string(opened.status().message());
  };
  using Catch::Contains;
  REQUIRE_THAT(complaint("net_af_packet0,iface=vx 10.77.0.1/24"), Contains("no interface vx"));
  REQUIRE_THAT(complaint("net_af_packet0,iface=va 10.77.0.1/24 mtu=9000"), Contains("ip link set va mtu 9000"));
  REQUIRE_THAT(complaint("net_nonsense0 10.77.0.1/24"), Contains("cannot open the device net_nonsense0"));
  REQUIRE_THAT(complaint("net_virtio_user0,path=/nowhere/sock 10.77.0.1/24"), Contains("net_virtio_user0"));

  auto device = open_in(net, kDevice);
  REQUIRE(device.ok());
  REQUIRE(open_in(net, kDevice).value() == device.value());  // one device for the whole process
  REQUIRE_THAT(complaint("net_af_packet0,iface=va 10.77.0.9/24"), Contains("10.77.0.1"));
  // Two of them would each get a part of the frames.
  REQUIRE_THAT(complaint("net_af_packet7,iface=va 10.77.0.9/24"), Contains("net_af_packet0,iface=va"));
  auto hub = hub_of(*device.value());
  REQUIRE_THAT(device.value()->make_hub(kPort, 8, 8).status().message(), Contains("7117") && Contains("taken"));
  const Endpoint absent = Endpoint::parse("10.77.0.99", kPort).value(), far = Endpoint::parse("10.78.0.1", kPort).value();
  REQUIRE_THAT(device.value()->make_link(absent, 8, now_ns() + 300 * kMs).status().message(),
               Contains("answers for 10.77.0.99"));
  REQUIRE_THAT(device.value()->make_link(far, 8, now_ns() + 300 * kMs).status().message(), Contains("gateway="));

  REQUIRE(hub->health().ok());
  REQUIRE(net.command("ip link set vb down"));
  // The kernel tells the other end's interface up to a second later.
  Status health;
  for (const TimeNs until = now_ns() + 10 * kSecond; health.ok() && now_ns() < until; health = hub->health()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE_THAT(health.message(), Contains("ip link set va up"));
}

}  // namespace
}  // namespace gatun::conformance
