// Switch: the shell around one Node, as the daemon is: it gives packets in bursts, sends what comes out, gives buffers back.
//
// Checks that the Node never holds more buffers than its trees have banks and children, and gives each back once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switch_model/node.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace gatun::sim {

// How a switch numbers its peers: any numbers will do that are not the endpoints'.
constexpr PeerId peer_of(uint32_t endpoint) {
  return endpoint * 3 + 1;
}
constexpr uint32_t endpoint_of(PeerId peer) {
  return (peer - 1) / 3;
}

class Switch {
 public:
  Switch(World& world, Network& network, uint32_t id);

  void admit(const JobPlan& job, uint8_t tree_index, const SwitchPlan& plan);
  void remove(uint32_t job, uint8_t tree);
  // Loses its state and what has arrived, and takes nothing until it is up again. After so many packets it crashes by
  // itself, amidst whatever it does: crash_due().
  void crash(TimeNs up_at);
  void crash_after(uint64_t packets) { crash_after_ = packets; }
  void crash_at(TimeNs time);
  bool crash_due() const { return crash_due_; }
  bool up() const { return world_.now >= up_at_ && world_.plan.runs_at(id_, world_.now) == world_.now; }

  void on_delivery(uint32_t packet);
  void on_run();  // the event asked for by a delivery

  uint32_t open_banks(uint32_t job, uint8_t tree) const { return node_.open_banks(job, tree); }
  // Whether the parent has answered this switch's probe.
  bool proven(uint32_t job, uint8_t tree) const;
  void send_probes();  // again, for all trees not yet proven
  uint32_t held() const { return held_; }
  uint32_t trees() const { return node_.trees(); }

 private:
  struct Admitted {
    uint32_t job = 0;
    uint8_t tree = 0;
    uint32_t banks_times_children = 0;
    uint32_t window = 0;
    int parent = -1;  // endpoint
    uint8_t child_at_parent = 0;
    uint64_t token = 0;
    uint32_t payload_bytes = 0;
    bool proven = false;
    std::vector<std::byte> arena;
    std::vector<int64_t> sent_up;  // per bank the chunk last sent up, for the mark
  };
  void handle(uint32_t packet);
  void flush(size_t sends_max = SIZE_MAX);
  void note_sent_up(const TxPacket& tx);
  bool take_probe_reply(const Packet& packet);
  void count(const NodeStats& before, const NodeStats& after);

  World& world_;
  Network& network_;
  uint32_t id_;
  Node node_;
  Outbox outbox_;
  std::vector<uint32_t> inbox_;
  std::vector<std::unique_ptr<Admitted>> admitted_;
  std::vector<std::unique_ptr<Admitted>> removed_;  // their arenas may still be referred to by packets on their way
  std::vector<bool> known_;                         // endpoints that are peers
  uint32_t held_ = 0, held_max_ = 0;
  TimeNs next_run_ = kNever;
  TimeNs up_at_ = 0;
  uint64_t crash_after_ = 0;  // 0: never
  TimeNs crash_at_ = kNever;
  bool crash_due_ = false;
  bool flushing_ = false;
};

}  // namespace gatun::sim
