// verbs: the transport over RDMA. It is shm over a network: each side has the memory that shm has, and instead of writing a
// descriptor where the other side looks, it has the network card write it there.
//
//   control thread:  VerbsHub::make_port (from the worker's card)      worker:  VerbsDevice::make_link, card() to the
//   daemon, lane thread:     VerbsHub::attach ... receive, send ... detach              connect() with the card that comes
//   back
//
// A packet is an RDMA write of its payload from where it lies to its place at the peer, and a write with immediate of its
// descriptor into the peer's ring, on a reliable queue pair: nothing is copied, lost or reordered. Payloads in arena() go
// so; others go through a few copy cells. The ring is as long as what the protocol has in flight, and its progress is
// written back to the sender; receives are posted to one shared queue per hub and name the queue pair only.
//
// A worker's payload may also lie in memory that was lent to its link (Transport::lend): it is written from there to where
// its place in the arena has its mirror, and the arena is not touched.
//
// The code behind these classes needs libibverbs and is a module of its own (verbs_module.cc). What a peer writes is
// believed as little as in shm: see shm_ring.h. A job has its own protection domain, so no peer reaches another job's
// memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/transport/shm_port.h"
#include "host/transport/transport.h"

namespace gatun {

using VerbsGid = std::array<uint8_t, 16>;
VerbsGid gid_of(const Endpoint& address);  // an IPv4 address becomes ::ffff:a.b.c.d
std::string gid_text(const VerbsGid& gid);

// What one end of a queue pair must know of the other. It travels as text in the control channel.
struct VerbsCard {
  VerbsGid gid{};       // of the end that this card is about
  VerbsGid peer_gid{};  // the address at which it wants the other end
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // packet sequence number
  uint32_t mtu_bytes = 0;     // RoCE's, of this end's port
  uint64_t memory = 0;        // where its region lies, and the key to it
  uint32_t key = 0;
  ShmShape shape;
  bool operator==(const VerbsCard&) const = default;

  std::string encode() const;
  static Result<VerbsCard> decode(const std::string& text);
};

// The results of one job on one lane, registered for the queue pairs of its ranks.
class VerbsGroup {
 public:
  virtual ~VerbsGroup() = default;
};

// The daemon's end of one rank's queue pair.
class VerbsPort {
 public:
  virtual ~VerbsPort() = default;
  virtual std::string card() const = 0;
};

struct VerbsHubOptions {
  uint32_t links_max = 256;
  uint32_t payload_bytes_max = 1 << 20;
  uint32_t buffers = 64;  // copied packets (probes) that can be held unreleased
};

class VerbsHub : public Transport {
 public:
  // Any thread. The memory is the caller's and outlives the group.
  virtual Result<std::shared_ptr<VerbsGroup>> make_group(std::span<std::byte> results) = 0;
  // Any thread. A port that is connected to the worker's end.
  virtual Result<std::unique_ptr<VerbsPort>> make_port(const VerbsCard& worker, std::shared_ptr<VerbsGroup> group) = 0;
  // The owner's thread; as in ShmHub.
  virtual PeerId attach(std::unique_ptr<VerbsPort> port) = 0;
  virtual std::unique_ptr<VerbsPort> detach(PeerId peer) = 0;
};

class VerbsLink : public Transport {
 public:
  virtual std::string card() const = 0;
  virtual Status connect(const std::string& card) = 0;
};

// One RDMA device of this host. What is made from it may stay longer; ports and groups go before their hub.
class VerbsDevice {
 public:
  virtual ~VerbsDevice() = default;
  virtual std::string name() const = 0;  // "mlx5_0"
  // Can peers reach it at this address now, by RoCE v2? The table is read each time, since addresses come and go.
  virtual bool has(const VerbsGid& gid) const = 0;
  virtual Result<uint32_t> mtu_bytes(const VerbsGid& gid) const = 0;  // RoCE's, of the port with this address
  virtual std::string gid_table() const = 0;  // for sentences and `gatun info`
  virtual Result<std::unique_ptr<VerbsHub>> make_hub(const VerbsHubOptions& options) = 0;
  virtual Result<std::unique_ptr<VerbsLink>> make_link(const ShmShape& shape, const VerbsGid& from, const VerbsGid& to) = 0;
};

using VerbsDevices = std::vector<std::unique_ptr<VerbsDevice>>;

// All devices that can be opened. None: the sentence says what this host lacks.
Result<VerbsDevices> open_verbs();

// The device that has the address. None: the sentence shows every device's table.
Result<VerbsDevice*> find_verbs(const VerbsDevices& devices, const VerbsGid& gid);

// What libgatun_verbs.so gives (host/base/module.h).
inline constexpr uint32_t kVerbsModuleVersion = 3;
inline constexpr const char* kVerbsModuleEntry = "gatun_verbs_module";
struct VerbsModule {
  uint32_t version;
  Result<VerbsDevices> (*open)();
};

}  // namespace gatun
