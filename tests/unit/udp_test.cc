// What is particular to UDP: marks, segmentation, refusals of the OS, and whatever strangers send.
#include "host/transport/udp.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "host/transport/udp_socket.h"

namespace gatun {
namespace {

Endpoint loopback(uint16_t port = 0) { return Endpoint::parse("127.0.0.1", port).value(); }

std::unique_ptr<UdpHub> make_hub(const std::string& ip = "127.0.0.1") {
  auto hub = UdpHub::make(Endpoint::parse(ip, 0).value(), {.buffers = 64});
  REQUIRE(hub.ok());
  return std::move(hub.value());
}

// A socket of somebody who does not use our library.
Fd make_stranger(const Endpoint& peer) {
  Fd fd(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), peer.address(), peer.size) == 0);
  return fd;
}

TxPacket make_packet(uint8_t number, const std::vector<std::byte>& payload, PeerId peer = 0) {
  TxPacket packet;
  std::memset(packet.head, number, kHeaderBytes);
  packet.payload = payload.data();
  packet.payload_bytes = static_cast<uint32_t>(payload.size());
  packet.peer = peer;
  return packet;
}

// Loopback delivers at once; a few tries allow for a busy machine.
std::vector<RxPacket> receive_all(Transport& transport, size_t count) {
  std::vector<RxPacket> all;
  RxPacket burst[kBurst];
  for (int tries = 0; tries < 20000 && all.size() < count; ++tries) {
    const int received = transport.receive(burst);
    all.insert(all.end(), burst, burst + received);
    if (received == 0) ::sched_yield();
  }
  return all;
}

TEST_CASE("receive__sees_congestion_marks", "[udp]") {
  const std::string ip = GENERATE("127.0.0.1", "::1");
  CAPTURE(ip);
  auto hub = UdpHub::make(Endpoint::parse(ip, 0).value(), {.buffers = 64});
  if (!hub.ok()) return;  // no IPv6 here
  Fd stranger = make_stranger(hub.value()->local());
  std::vector<std::byte> bytes(100);
  uint64_t marked = 0;
  for (int ecn : {0, 1, 2, 3, 2, 3}) {
    if (ip == "::1") {
      REQUIRE(::setsockopt(stranger.get(), IPPROTO_IPV6, IPV6_TCLASS, &ecn, sizeof(ecn)) == 0);
    } else {
      REQUIRE(::setsockopt(stranger.get(), IPPROTO_IP, IP_TOS, &ecn, sizeof(ecn)) == 0);
    }
    REQUIRE(::send(stranger.get(), bytes.data(), bytes.size(), 0) == 100);
    const auto packets = receive_all(*hub.value(), 1);
    REQUIRE(packets.size() == 1);
    REQUIRE(packets[0].congested == (ecn == 3));
    marked += ecn == 3;
    hub.value()->release({&packets[0].buffer, 1});
  }
  REQUIRE(hub.value()->stats().congested == marked);
}

TEST_CASE("send__marks_packets_as_ecn_capable", "[udp]") {
  auto hub = make_hub();
  Fd listener(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const Endpoint any = loopback();
  REQUIRE(::bind(listener.get(), any.address(), any.size) == 0);
  const int on = 1;
  REQUIRE(::setsockopt(listener.get(), IPPROTO_IP, IP_RECVTOS, &on, sizeof(on)) == 0);
  auto link = UdpLink::make(local_address(listener.get()), {.buffers = 8});
  REQUIRE(link.ok());
  const TxPacket packet = make_packet(1, {});
  REQUIRE(link.value()->send({&packet, 1}) == 1);
  char bytes[64], control[64];
  iovec vector{bytes, sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  REQUIRE(::recvmsg(listener.get(), &message, 0) == kHeaderBytes);
  const cmsghdr* tos = CMSG_FIRSTHDR(&message);
  REQUIRE(tos != nullptr);
  REQUIRE((*CMSG_DATA(tos) & 3) == 2);
}

// Over loopback nothing corrupts, so a checksum may be left out; one that was written is verified all the same.
TEST_CASE("receive__checksums_over_loopback", "[udp]") {
  const std::string ip = GENERATE("127.0.0.1", "::1");
  auto hub = UdpHub::make(Endpoint::parse(ip, 0).value(), {.buffers = 64});
  if (!hub.ok()) return;  // no IPv6 here
  auto link = std::move(UdpLink::make(hub.value()->local(), {.buffers = 64}).value());
  CHECK(link->caps().intact);
  CHECK_FALSE(hub.value()->caps().intact);
  const std::vector<std::byte> payload(100);
  for (const bool written : {true, false}) {
    TxPacket packet = make_packet(1, payload);
    std::memset(packet.head + kHeaderBytes - 4, written ? 7 : 0, 4);
    REQUIRE(link->send({&packet, 1}) == 1);
    const auto packets = receive_all(*hub.value(), 1);
    REQUIRE(packets.size() == 1);
    CHECK(packets[0].checksummed == written);
    hub.value()->release({&packets[0].buffer, 1});
  }
}

TEST_CASE("receive__drops_and_counts_runts", "[udp]") {
  auto hub = make_hub();
  Fd stranger = make_stranger(hub->local());
  std::vector<std::byte> bytes(64);
  for (size_t size = 0; size < kHeaderBytes; ++size) {
    REQUIRE(::send(stranger.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size));
  }
  REQUIRE(::send(stranger.get(), bytes.data(), kHeaderBytes, 0) == kHeaderBytes);
  const auto packets = receive_all(*hub, 1);
  REQUIRE(packets.size() == 1);
  REQUIRE(packets[0].payload_bytes == 0);
  REQUIRE(hub->stats().dropped_runt == kHeaderBytes);
  REQUIRE(hub->stats().packets_received == 1);
}

TEST_CASE("receive__random_bytes_of_random_sizes", "[udp]") {
  auto hub = make_hub();
  Fd stranger = make_stranger(hub->local());
  std::mt19937 random(3);
  std::vector<std::byte> bytes(65000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  uint64_t whole = 0, runts = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t size = random() % 4 == 0 ? random() % 65000 : random() % 100;
    REQUIRE(::send(stranger.get(), bytes.data(), size, 0) == static_cast<ssize_t>(size));
    (size < kHeaderBytes ? runts : whole) += 1;
    if (size < kHeaderBytes) continue;
    const auto packets = receive_all(*hub, 1);
    REQUIRE(packets.size() == 1);
    REQUIRE(packets[0].payload_bytes == size - kHeaderBytes);
    REQUIRE(packets[0].peer == kNoPeer);
    REQUIRE(std::memcmp(packets[0].head, bytes.data(), kHeaderBytes) == 0);
    hub->release({&packets[0].buffer, 1});
  }
  RxPacket burst[kBurst];
  while (!hub->prepare_wait()) REQUIRE(hub->receive(burst) == 0);
  REQUIRE(hub->stats().dropped_runt == runts);
  REQUIRE(hub->stats().packets_received == whole);
}

TEST_CASE("receive__segments_share_a_buffer_until_all_are_released", "[udp]") {
  auto hub = make_hub();
  auto link = UdpLink::make(hub->local(), {.buffers = 8});
  std::vector<std::byte> payload(1000, std::byte{7});
  std::vector<TxPacket> packets;
  for (uint8_t i = 0; i < 20; ++i) packets.push_back(make_packet(i, payload));
  REQUIRE(link.value()->send(packets) == 20);
  const auto received = receive_all(*hub, 20);
  REQUIRE(received.size() == 20);
  if (received[0].buffer != received[1].buffer) {
    std::cout << "[skipped] segments share a buffer: this kernel has no UDP GSO and GRO on loopback\n";
    return;
  }
  for (uint8_t i = 0; i < 20; ++i) {
    REQUIRE(received[i].head[5] == std::byte{i});
    REQUIRE(received[i].payload[999] == std::byte{7});
  }
  for (int i = 19; i >= 0; --i) hub->release({&received[i].buffer, 1});
}

TEST_CASE("send__same_packets_with_and_without_segmentation", "[udp]") {
  const bool gso = GENERATE(false, true);
  const bool gro = GENERATE(false, true);
  CAPTURE(gso, gro);
  auto hub = UdpHub::make(loopback(), {.buffers = 256, .gso = gso, .gro = gro});
  std::vector<std::unique_ptr<UdpLink>> links;
  std::vector<PeerId> peers;
  std::vector<std::byte> empty, payload(1400, std::byte{1}), shorter(600, std::byte{2});
  for (int i = 0; i < 3; ++i) {
    links.push_back(std::move(UdpLink::make(hub.value()->local(), {.buffers = 256, .gso = gso, .gro = gro}).value()));
    const TxPacket hello = make_packet(0, empty);
    links[i]->send({&hello, 1});
    const auto seen = receive_all(*hub.value(), 1);
    peers.push_back(hub.value()->adopt(seen.at(0)));
  }
  // Chunk by chunk to all, more than one block, with odd sizes in between.
  std::vector<TxPacket> packets;
  for (uint8_t chunk = 0; chunk < 40; ++chunk) {
    const auto& bytes = chunk % 11 == 7 ? shorter : chunk % 13 == 9 ? empty : payload;
    for (PeerId peer : peers) packets.push_back(make_packet(chunk, bytes, peer));
  }
  REQUIRE(hub.value()->send(packets) == 120);
  for (auto& link : links) {
    const auto seen = receive_all(*link, 40);
    REQUIRE(seen.size() == 40);
    std::vector<bool> chunks(40);
    for (const RxPacket& packet : seen) {
      const int chunk = std::to_integer<int>(packet.head[0]);
      chunks[chunk] = true;
      REQUIRE(packet.payload_bytes == (chunk % 11 == 7 ? 600 : chunk % 13 == 9 ? 0 : 1400));
    }
    REQUIRE(std::count(chunks.begin(), chunks.end(), true) == 40);
  }
  REQUIRE(hub.value()->stats().packets_sent == 120);
}

TEST_CASE("send__goes_on_without_segmentation_where_it_is_refused", "[udp]") {
  auto hub = make_hub();
  Fd fd = std::move(make_udp_socket(AF_INET, {.socket_bytes = 1 << 20}).value());
  REQUIRE(connect_udp(fd.get(), hub->local()).ok());
  if (!has_gso(fd.get())) return;
  const int on = 1;  // the kernel refuses to segment without checksums
  REQUIRE(::setsockopt(fd.get(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)) == 0);
  UdpSender sender(fd.get(), nullptr, true);
  std::vector<std::byte> payload(500);
  std::vector<TxPacket> packets;
  for (uint8_t i = 0; i < 100; ++i) packets.push_back(make_packet(i, payload));
  REQUIRE(sender.send(packets) == 100);
  REQUIRE_FALSE(sender.gso());
  std::vector<int> seen(100);
  RxPacket burst[kBurst];
  for (int got = 0, tries = 0; got < 100 && tries < 20000; ++tries) {
    const int count = hub->receive(burst);
    for (int i = 0; i < count; ++i) {
      ++seen[std::to_integer<int>(burst[i].head[0])];
      hub->release({&burst[i].buffer, 1});
    }
    got += count;
  }
  for (int times : seen) REQUIRE(times == 1);
  TransportStats stats;
  sender.add_stats(&stats);
  REQUIRE(stats.packets_sent == 100);
  REQUIRE(stats.dropped_send == 0);
}

TEST_CASE("send__takes_a_prefix_when_the_socket_is_full", "[udp]") {
  int pair[2];  // a unix datagram socket is full after a few packets, a loopback UDP socket never
  REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  Fd near(pair[0]), far(pair[1]);
  UdpSender sender(near.get(), nullptr, false);
  std::vector<std::byte> payload(5000);
  std::vector<TxPacket> packets;
  for (int i = 0; i < 200; ++i) packets.push_back(make_packet(static_cast<uint8_t>(i), payload));
  std::span<const TxPacket> rest(packets);
  int next = 0, full = 0;
  std::vector<char> bytes(6000);
  while (!rest.empty() && full < 1000) {
    const int taken = sender.send(rest);
    REQUIRE(taken < 100);
    rest = rest.subspan(taken);
    full += !rest.empty();
    for (int i = 0; i < taken; ++i) {
      REQUIRE(::recv(far.get(), bytes.data(), bytes.size(), 0) == 5032);
      REQUIRE(static_cast<uint8_t>(bytes[0]) == next++);
    }
    REQUIRE(::recv(far.get(), bytes.data(), bytes.size(), 0) < 0);
  }
  REQUIRE(next == 200);
  REQUIRE(full > 0);
}

TEST_CASE("health__names_a_peer_that_does_not_listen", "[udp]") {
  Endpoint address = make_hub()->local();  // and it is gone again
  auto link = UdpLink::make(address, {.buffers = 8});
  REQUIRE(link.ok());
  REQUIRE(link.value()->health().ok());
  const TxPacket packet = make_packet(1, {});
  RxPacket burst[kBurst];
  for (int i = 0; i < 3; ++i) {
    REQUIRE(link.value()->send({&packet, 1}) == 1);
    REQUIRE(link.value()->receive(burst) == 0);
  }
  const Status health = link.value()->health();
  REQUIRE_FALSE(health.ok());
  REQUIRE(std::string(health.message()).find(address.text()) != std::string::npos);
  REQUIRE(link.value()->stats().refused > 0);
  // Somebody listens there now: the link works, without being made anew.
  auto hub = UdpHub::make(address, {.buffers = 8});
  REQUIRE(hub.ok());
  link.value()->receive(burst);
  link.value()->send({&packet, 1});
  link.value()->send({&packet, 1});
  REQUIRE(receive_all(*hub.value(), 1).size() >= 1);
  (void)link.value()->health();
  REQUIRE(link.value()->health().ok());
}

TEST_CASE("make__a_taken_port_is_named_with_the_fix", "[udp]") {
  auto first = make_hub();
  auto second = UdpHub::make(first->local(), {.buffers = 8});
  REQUIRE_FALSE(second.ok());
  const std::string message = second.status().message();
  REQUIRE(message.find(first->local().text()) != std::string::npos);
  REQUIRE(message.find("gatund") != std::string::npos);
  REQUIRE(message.find("ss -ulpn") != std::string::npos);
}

TEST_CASE("make__a_foreign_address_is_named", "[udp]") {
  auto hub = UdpHub::make(Endpoint::parse("203.0.113.77", 0).value(), {.buffers = 8});
  REQUIRE_FALSE(hub.ok());
  REQUIRE(std::string(hub.status().message()).find("203.0.113.77") != std::string::npos);
}

TEST_CASE("caps__loopback_takes_large_payloads", "[udp]") {
  auto hub = make_hub();
  auto link = UdpLink::make(hub->local(), {.buffers = 8, .socket_bytes = 1 << 20});
  REQUIRE(link.value()->caps().payload_bytes_max >= 60 << 10);
  REQUIRE(link.value()->caps().payload_bytes_max <= hub->caps().payload_bytes_max);
  REQUIRE(link.value()->caps().payload_bytes_max % 64 == 0);
  REQUIRE(link.value()->caps().receive_bytes >= 100 << 10);
  REQUIRE(link.value()->caps().buffers == 8);
  REQUIRE_FALSE(link.value()->caps().reliable);
}

TEST_CASE("parse__addresses", "[udp]") {
  REQUIRE(Endpoint::parse("127.0.0.1", 7117).value().text() == "127.0.0.1:7117");
  REQUIRE(Endpoint::parse("::1", 7117).value().text() == "[::1]:7117");
  REQUIRE_FALSE(Endpoint::parse("localhost", 1).ok());
  REQUIRE_FALSE(Endpoint::parse("300.1.1.1", 1).ok());
  REQUIRE_FALSE(Endpoint::parse("", 1).ok());
}

}  // namespace
}  // namespace gatun
