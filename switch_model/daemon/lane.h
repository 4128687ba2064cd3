// Lane: one datapath thread of the daemon: its own Node, UDP sockets (or a hub on a DPDK device), shm and verbs hubs, so
// that nothing is shared or locked there.
//
//   loop:  receive a burst from each transport -> Node -> send what it wants -> release buffers; when idle: spin, yield,
//   block
//
// The control thread admits and removes jobs by call(): the lane runs it between two bursts while the control thread waits.
// Peers and buffers carry the number of their transport in the top byte. After start() the loop allocates nothing; call()
// may.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host/transport/shm.h"
#include "host/transport/verbs.h"
#include "host/transport/waiter.h"
#include "switch_model/node.h"

namespace gatun {

class Lane {
 public:
  struct Options {
    uint32_t index = 0;
    uint32_t trees_max = 1024;
    uint32_t peers_max = 1024;  // of each UDP socket or DPDK hub, as it was made
    TimeNs busy_poll = 0;       // spin this long before blocking
  };
  struct Tree {
    TreeSpec spec;
    std::span<std::byte> arena;  // outlives the tree
  };
  struct Stats {
    NodeStats node;
    TransportStats transport;  // all of them together
    uint32_t trees = 0, links = 0, peers = 0;
    uint64_t dropped_unsent = 0;   // the OS had no room for a while
    uint64_t dropped_foreign = 0;  // more sources for a job than it can have ranks; data outside the shared arena
    uint64_t sleeps = 0;
    TimeNs busy_ns = 0;  // in turns that found packets
  };
  // What the lane shows to an observer.
  struct View {
    Stats stats;
    std::vector<TreeView> trees;  // the first `count` count
    size_t count = 0;
    bool complete = false;  // all trees had room
  };

  // shm may be null; verbs: one hub per RDMA device.
  static Result<std::unique_ptr<Lane>> make(const Options& options, std::vector<std::unique_ptr<Transport>> hubs,
                                            std::unique_ptr<ShmHub> shm, std::vector<std::unique_ptr<VerbsHub>> verbs);
  ~Lane();

  Status start();
  void stop();  // joins the thread; jobs stay

  // Control thread only. All trees of the job on this lane and the shm links of its ranks, or nothing.
  Status admit(uint32_t job, std::vector<Tree> trees, std::vector<std::unique_ptr<ShmPort>> ports);
  // One rank's queue pair, made by verbs(device).
  Status attach(uint32_t job, size_t device, std::unique_ptr<VerbsPort> port);
  VerbsHub& verbs(size_t device) { return *verbs_[device]; }
  void remove(uint32_t job);
  Stats stats();

  // One observer, a thread that is neither of the two: asks for a view with room for so many trees, and may read it once
  // answered() is true. The lane writes it in small parts between bursts; there is no lock, and nobody waits for anybody.
  void ask(size_t trees);
  bool answered() const { return !asked_.load(std::memory_order_acquire); }
  const View& view() const { return view_; }

 private:
  struct Job {
    std::vector<uint8_t> trees;
    std::vector<PeerId> links;                           // in the shm hub
    std::vector<std::pair<size_t, PeerId>> queue_pairs;  // by device
    uint32_t adopted = 0, adopted_max = 0;
  };
  using Ports = std::vector<std::unique_ptr<ShmPort>>;
  // Unmapped and destroyed by the control thread.
  struct Removed {
    Ports ports;
    std::vector<std::unique_ptr<VerbsPort>> queue_pairs;
  };

  Lane(const Options& options, std::unique_ptr<Waiter> waiter, std::vector<std::unique_ptr<Transport>> hubs,
       std::unique_ptr<ShmHub> shm, std::vector<std::unique_ptr<VerbsHub>> verbs);

  void call(const std::function<void()>& work);
  void place();
  void loop();
  int receive(uint32_t transport, TimeNs now);
  void adopt(uint32_t transport, RxPacket* packet);
  bool belongs_in_arena(const RxPacket& packet) const;
  void flush();
  void send_to(uint32_t transport, std::span<const TxPacket> packets);
  Status admit_here(uint32_t job, const std::vector<Tree>& trees, Ports* ports);
  Removed remove_here(uint32_t job);
  Stats stats_here() const;
  void publish();

  Options options_;
  std::unique_ptr<Waiter> waiter_;
  std::vector<std::unique_ptr<Transport>> hubs_;
  std::unique_ptr<ShmHub> shm_;
  std::vector<std::unique_ptr<VerbsHub>> verbs_;
  std::vector<Transport*> transports_;         // the hubs, then shm and verbs, whose contributions lie in arenas
  std::vector<std::vector<uint32_t>> owners_;  // by hub and peer: the job that adopted it, or 0
  Node node_;
  std::map<uint32_t, Job> jobs_;
  std::unique_ptr<Outbox> outbox_;
  std::vector<std::array<TxPacket, Outbox::kSends>> sends_;  // by transport, filled in flush()
  std::vector<std::array<BufferId, Outbox::kReleases>> releases_;
  uint64_t dropped_unsent_ = 0, dropped_foreign_ = 0;
  TimeNs busy_ns_ = 0;

  std::atomic<bool> asked_{false};  // while true the view and the place are the lane's, else the observer's
  View view_;
  size_t publish_place_ = 0;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> called_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  const std::function<void()>* work_ = nullptr;  // of the control thread, which waits
};

}  // namespace gatun
