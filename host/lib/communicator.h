// Communicator: one rank's part in one job: how the ranks find each other, the lane with its paths, and the search for a
// switch while there is none. One rank alone needs no switch: every operation is a copy.
//
// Thread-safe, except that nothing may be called during or after destruction.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "host/base/log.h"
#include "host/base/settings.h"
#include "host/fallback/store.h"
#include "host/lib/attach.h"
#include "host/lib/lane.h"
#include "host/lib/meeting.h"

namespace gatun {

class Communicator final {
 public:
  struct Config {
    SettingValues settings;
    uint32_t rank = 0;
    uint32_t ranks = 1;
    std::unique_ptr<Store> store;  // the caller's, shared by the ranks; null: none
    TransportWrapper wrap;         // tests
  };

  // What gatun_comm_stats says beside the lane's numbers.
  struct Facts {
    uint32_t rank = 0, ranks = 0, trees = 0, window = 0, payload_bytes = 0;
    std::string transport;  // "shm", "udp", "ring", "exact", "self"
    std::string address;    // of the switch; "" without one
    std::string why;        // operations do not go through a switch
  };

  static Result<std::unique_ptr<Communicator>> create(Config config);
  // Completes what is pending, fails all ranks if that takes longer than a second, and leaves.
  ~Communicator();

  Status start(const Contract& contract, const void* send, void* recv, const Lane::Call& call, Request** request);
  Status run(const Contract& contract, const void* send, void* recv);
  bool test(Request* request) { return !lane_ || lane_->test(request); }
  bool wait(Request* request, TimeNs until) { return !lane_ || lane_->wait(request, until); }
  Status take(Request* request);

  // Memory that operations may use without copies (gatun_register).
  Status register_memory(std::span<std::byte> memory);
  Status deregister_memory(const void* address);

  void abort_job(const std::string& reason);
  Status failure() const;

  uint32_t rank() const { return config_.rank; }
  uint32_t ranks() const { return config_.ranks; }
  Facts facts() const;
  const Log& log() const { return log_; }
  Lane::Stats stats();

 private:
  explicit Communicator(Config config);
  Status connect();
  Status open_device();
  void say_why(const SwitchPath::Facts& facts) const;
  Result<std::unique_ptr<ControlConnection>> reach_switch(TimeNs grace, TimeNs deadline) const;
  Status meet_by_store(std::unique_ptr<MeshListener>* listener, const std::string& card, TimeNs deadline,
                       std::unique_ptr<Ring>* ring, std::unique_ptr<SwitchPath>* path, Status* no_switch);
  Status meet_at_switch(const std::string& card, TimeNs deadline, Meeting* meeting, std::unique_ptr<SwitchPath>* path,
                        std::vector<std::string>* cards);
  Status join_switch(std::unique_ptr<ControlConnection> connection, const std::string& card, TimeNs deadline,
                     const std::atomic<bool>* stop, std::unique_ptr<SwitchPath>* path, std::vector<std::string>* cards);
  Result<std::vector<std::string>> meet_without_switch(Meeting& meeting, const Status& no_switch) const;
  Result<std::unique_ptr<Ring>> make_ring(std::unique_ptr<MeshListener> listener, const std::vector<std::string>& cards,
                                          TimeNs deadline) const;
  SwitchPath::Config path_config(const std::string& card, const std::atomic<bool>* stop) const;
  Status start_lane(std::unique_ptr<SwitchPath> path, std::unique_ptr<Ring> ring, const std::string& why);
  void seek();
  bool pause(TimeNs duration);
  Status run_alone(const Contract& contract, const void* send, void* recv);

  Config config_;
  const Log log_;
  std::shared_ptr<DpdkDevice> device_;  // null: kernel sockets
  std::unique_ptr<Lane> lane_;          // null when alone
  std::string way_;                     // without the switch: "ring" or "exact"

  // The search for a switch.
  std::thread seeker_;
  std::atomic<bool> stop_{false};
  std::mutex seek_mutex_;
  std::condition_variable seek_wake_;

  // Alone.
  mutable std::mutex mutex_;
  RequestPool pool_{0};
  uint64_t operations_ = 0;
  Registrations registrations_;
  Status failure_;
};

}  // namespace gatun
