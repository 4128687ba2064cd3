// What the conformance cases need of a transport: a hub with some links, who is who, and places for payloads.
//
// A kind of transport joins the suite by a Harness; the cases are the same for all. Payloads are staged in numbered places,
// which a case may reuse when the receivers of the earlier contents are done with them (the rule of shm arenas).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/transport/transport.h"

namespace gatun::conformance {

inline constexpr uint32_t kPlaces = 64;  // for payloads, on each side

struct HarnessOptions {
  int links = 2;
  uint32_t buffers = 256;
  uint32_t payload_bytes = 4096;  // where the transport is made for a payload; others follow their path
  uint32_t mtu = 1500;            // of that path, where the harness makes it
};

class Harness {
 public:
  virtual ~Harness() = default;
  virtual Transport& hub() = 0;
  virtual Transport& link(int index) = 0;
  virtual uint32_t payload_bytes_max() = 0;
  virtual std::byte* hub_place(uint32_t place) = 0;
  virtual std::byte* link_place(int link, uint32_t place) = 0;

  // After introduce(): the hub's number of each link.
  std::vector<PeerId> peers;
};

// "udp4", "udp6", "shm", "verbs" (between the devices of tests/rdma), "lossy" (over udp4, without faults), and those of
// harness_dpdk.h. What this host lacks to run one; empty if nothing.
std::string missing_for(const std::string& kind);
std::unique_ptr<Harness> make_harness(const std::string& kind, const HarnessOptions& options = {});
// Each link sends a packet, the hub adopts its source.
void introduce(Harness& harness, int links);

// A packet that says what it is: link, number and size in the head, and a payload made from them.
struct Label {
  uint32_t link = 0;
  uint32_t number = 0;
  uint32_t payload_bytes = 0;
  bool operator==(const Label&) const = default;
};
TxPacket make_packet(const Label& label, std::byte* place, PeerId peer);
Label label_of(const RxPacket& packet);
// The head is sound and the payload is the one that make_packet() writes.
bool intact(const RxPacket& packet);

// Sends all, calling relieve() whenever the transport has no room.
void send_all(Transport& from, std::span<const TxPacket> packets, const std::function<void()>& relieve);
// Receives until count packets were seen or nothing has come for a second; returns how many were seen. Releases each buffer
// after its visit.
int receive_some(Transport& at, int count, const std::function<void(const RxPacket&)>& visit);

}  // namespace gatun::conformance
