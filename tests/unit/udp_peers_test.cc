#include "host/transport/udp_peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>

namespace gatun {
namespace {

sockaddr_storage ip4(uint32_t host, uint16_t port) {
  sockaddr_storage storage{};
  auto& in = reinterpret_cast<sockaddr_in&>(storage);
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(host);
  in.sin_port = htons(port);
  return storage;
}

sockaddr_storage ip6(uint8_t last, uint16_t port, uint32_t scope) {
  sockaddr_storage storage{};
  auto& in = reinterpret_cast<sockaddr_in6&>(storage);
  in.sin6_family = AF_INET6;
  in.sin6_addr.s6_addr[0] = 0xfd;
  in.sin6_addr.s6_addr[15] = last;
  in.sin6_port = htons(port);
  in.sin6_scope_id = scope;
  return storage;
}

TEST_CASE("add__knows_an_address_again", "[udp_peers]") {
  UdpPeers peers(4);
  const PeerId a = peers.add(ip4(1, 1), sizeof(sockaddr_in));
  REQUIRE(a != kNoPeer);
  REQUIRE(peers.add(ip4(1, 1), sizeof(sockaddr_in)) == a);
  REQUIRE(peers.find(ip4(1, 1)) == a);
  REQUIRE(peers.find(ip4(1, 2)) == kNoPeer);
  REQUIRE(peers.find(ip4(2, 1)) == kNoPeer);
  REQUIRE(peers.count() == 1);
}

TEST_CASE("add__tells_ip6_hosts_ports_and_scopes_apart", "[udp_peers]") {
  UdpPeers peers(8);
  const PeerId a = peers.add(ip6(1, 1, 0), sizeof(sockaddr_in6));
  REQUIRE(peers.find(ip6(2, 1, 0)) == kNoPeer);
  REQUIRE(peers.find(ip6(1, 2, 0)) == kNoPeer);
  REQUIRE(peers.find(ip6(1, 1, 7)) == kNoPeer);
  REQUIRE(peers.find(ip6(1, 1, 0)) == a);
}

TEST_CASE("add__refuses_when_full_and_remove_makes_room", "[udp_peers]") {
  UdpPeers peers(2);
  const PeerId a = peers.add(ip4(1, 1), sizeof(sockaddr_in));
  peers.add(ip4(1, 2), sizeof(sockaddr_in));
  REQUIRE(peers.add(ip4(1, 3), sizeof(sockaddr_in)) == kNoPeer);
  peers.remove(a);
  peers.remove(a);
  peers.remove(12345);
  REQUIRE_FALSE(peers.known(a));
  REQUIRE(peers.count() == 1);
  REQUIRE(peers.add(ip4(1, 3), sizeof(sockaddr_in)) != kNoPeer);
  REQUIRE(peers.find(ip4(1, 1)) == kNoPeer);
}

TEST_CASE("remove__agrees_with_a_map_over_many_steps", "[udp_peers]") {
  UdpPeers peers(100);
  std::map<std::pair<uint32_t, uint16_t>, PeerId> model;
  std::mt19937 random(7);
  for (int step = 0; step < 20000; ++step) {
    const uint32_t host = 0x0a000000 + random() % 16;
    const uint16_t port = static_cast<uint16_t>(1000 + random() % 16);
    const auto known = model.find({host, port});
    REQUIRE(peers.find(ip4(host, port)) == (known == model.end() ? kNoPeer : known->second));
    if (random() % 2 == 0) {
      const PeerId peer = peers.add(ip4(host, port), sizeof(sockaddr_in));
      if (known != model.end()) REQUIRE(peer == known->second);
      if (known == model.end() && model.size() == 100) REQUIRE(peer == kNoPeer);
      if (peer != kNoPeer) model[{host, port}] = peer;
    } else if (known != model.end()) {
      peers.remove(known->second);
      model.erase(known);
    }
    REQUIRE(peers.count() == model.size());
  }
}

}  // namespace
}  // namespace gatun
