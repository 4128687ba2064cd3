// Lane: one datapath thread of gatund, with its own Node and its own transports. Nothing is shared with other lanes.
//
// The control thread prepares everything (memory, shm ports) and hands it over by admit() and remove(), which run on the
// lane's thread between two bursts and return when they are done. The datapath itself takes no lock and allocates nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host/base/log.h"
#include "host/transport/shm.h"
#include "host/transport/udp.h"
#include "host/transport/waiter.h"
#include "switch_model/node.h"

namespace gatun {

// Everything that one job has on one lane.
struct LaneJob {
  uint32_t job = 0;
  std::vector<TreeSpec> trees;
  std::vector<std::span<std::byte>> arenas;          // per tree
  std::vector<std::unique_ptr<ShmPort>> ports;       // of its shm ranks; given to the hub, and back by remove()
  std::vector<PeerId> attached;                      // their peers at the hub
};

class Lane {
 public:
  struct Options {
    uint32_t index = 0;
    std::vector<SocketAddress> udp;  // where to serve; port 0 in the first means any
    bool shm = true;
    uint32_t trees_max = 64;
    uint32_t udp_buffers = 1024;
    bool busy_poll = false;
    int busy_poll_us = 0;
  };

  static Result<std::unique_ptr<Lane>> make(const Options& options);
  ~Lane();  // stops the thread

  void start();

  // Control thread.
  Status admit(LaneJob* job);
  void remove(LaneJob* job);
  uint16_t udp_port() const { return udp_port_; }  // 0 without udp
  TransportCaps udp_caps() const { return udp_caps_; }
  NodeStats node_stats();  // a copy made on the lane's thread
  std::vector<TransportStats> transport_stats();

 private:
  explicit Lane(const Options& options);
  Status open();
  void loop();
  bool serve(uint32_t index);  // one burst of one transport; false if there was none
  void flush();
  void send(uint32_t transport, std::span<TxPacket> packets);
  void run(std::function<void()> command);  // on the lane's thread; waits for it
  void run_pending();

  Options options_;
  Node node_;
  std::vector<std::unique_ptr<Transport>> transports_;
  ShmHub* shm_hub_ = nullptr;
  uint16_t udp_port_ = 0;
  TransportCaps udp_caps_;
  std::unique_ptr<Waiter> waiter_;
  Outbox outbox_;
  std::vector<BufferId> released_[4];  // per transport, for one release call each

  std::mutex mutex_;
  std::condition_variable done_;
  std::function<void()> command_;        // guarded by mutex_
  std::atomic<bool> pending_{false}, quit_{false};
  std::thread thread_;
};

}  // namespace gatun
