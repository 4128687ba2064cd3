// UdpPeers: the addresses a hub knows, numbered, and found again by the source of a packet.
//
// A fixed table, sized at the start and open-addressed by address and port. The hub's thread owns it.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <vector>

#include "protocols/packet.h"

namespace gatun {

class UdpPeers {
 public:
  explicit UdpPeers(uint32_t peers_max);

  PeerId find(const sockaddr_storage& address) const;  // kNoPeer if unknown
  PeerId add(const sockaddr_storage& address, socklen_t size);  // the number it has already, a free one, or kNoPeer
  void remove(PeerId peer);                            // unknown numbers are ignored
  bool known(PeerId peer) const { return peer < peers_.size() && peers_[peer].used; }
  const sockaddr_storage& address(PeerId peer) const { return peers_[peer].address; }
  socklen_t address_size(PeerId peer) const { return peers_[peer].address_size; }
  uint32_t count() const { return count_; }

 private:
  struct Key {  // what tells two sources apart
    uint64_t high = 0, low = 0;
    uint64_t port_scope = 0;
    bool operator==(const Key&) const = default;
  };
  struct Peer {
    Key key;
    sockaddr_storage address{};
    socklen_t address_size = 0;
    bool used = false;
  };
  static Key make_key(const sockaddr_storage& address);
  uint32_t home(const Key& key) const;
  uint32_t locate(const Key& key) const;  // its place in the table, or the empty place where it belongs

  std::vector<Peer> peers_;      // by PeerId
  std::vector<PeerId> free_;     // LIFO, capacity kept
  std::vector<PeerId> table_;    // at least twice as many places as peers, a power of two
  uint32_t count_ = 0;
};

}  // namespace gatun
