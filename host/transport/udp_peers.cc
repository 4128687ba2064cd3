#include "host/transport/udp_peers.h"

#include <netinet/in.h>

#include <bit>
#include <cstring>

namespace gatun {

UdpPeers::UdpPeers(uint32_t peers_max)
    : peers_(peers_max), free_(peers_max), table_(std::bit_ceil(2 * peers_max + 2), kNoPeer) {
  for (uint32_t i = 0; i < peers_max; ++i) free_[i] = peers_max - 1 - i;
}

UdpPeers::Key UdpPeers::make_key(const sockaddr_storage& address) {
  Key key;
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    key.low = in.sin_addr.s_addr;
    key.port_scope = in.sin_port;
  } else {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    std::memcpy(&key.high, &in.sin6_addr, 8);
    std::memcpy(&key.low, reinterpret_cast<const char*>(&in.sin6_addr) + 8, 8);
    key.port_scope = in.sin6_port | uint64_t{in.sin6_scope_id} << 32;
  }
  return key;
}

uint32_t UdpPeers::home(const Key& key) const {
  uint64_t mixed = (key.high ^ key.low * 0x9e3779b97f4a7c15u) + key.port_scope * 0xff51afd7ed558ccdu;
  mixed = (mixed ^ mixed >> 32) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>(mixed >> 32) & static_cast<uint32_t>(table_.size() - 1);
}

uint32_t UdpPeers::locate(const Key& key) const {
  const uint32_t mask = static_cast<uint32_t>(table_.size() - 1);
  uint32_t place = home(key);
  while (table_[place] != kNoPeer && peers_[table_[place]].key != key) place = (place + 1) & mask;
  return place;
}

PeerId UdpPeers::find(const sockaddr_storage& address) const { return table_[locate(make_key(address))]; }

PeerId UdpPeers::add(const sockaddr_storage& address, socklen_t size) {
  const Key key = make_key(address);
  const uint32_t place = locate(key);
  if (table_[place] != kNoPeer) return table_[place];
  if (count_ == peers_.size()) return kNoPeer;
  const PeerId peer = free_[peers_.size() - 1 - count_++];
  peers_[peer] = {key, address, size, true};
  table_[place] = peer;
  return peer;
}

void UdpPeers::remove(PeerId peer) {
  if (!known(peer)) return;
  const uint32_t mask = static_cast<uint32_t>(table_.size() - 1);
  uint32_t hole = locate(peers_[peer].key);
  table_[hole] = kNoPeer;
  // Later entries of the same run move up, so that the run has no gap before them.
  for (uint32_t place = (hole + 1) & mask; table_[place] != kNoPeer; place = (place + 1) & mask) {
    const uint32_t wanted = home(peers_[table_[place]].key);
    if (((place - wanted) & mask) >= ((place - hole) & mask)) {
      table_[hole] = table_[place];
      table_[place] = kNoPeer;
      hole = place;
    }
  }
  peers_[peer].used = false;
  free_[peers_.size() - count_--] = peer;
}

}  // namespace gatun
