// SwitchPath: one switch epoch of a communicator: the membership at the controller and the proven data paths, with the
// Datapath over them. A communicator that loses its switch drops its path, and gets another when a switch is there again.
//
// join() blocks. Then the control client's thread calls Events, and the lane's driver owns the datapath.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/base/settings.h"
#include "host/lib/attach.h"
#include "host/lib/control_client.h"
#include "host/lib/datapath.h"
#include "protocols/path.h"

namespace gatun {

class SwitchPath final : private ControlClient::Events {
 public:
  // What the controller says. Called by the control client's thread.
  class Events {
   public:
    virtual ~Events() = default;
    // The membership is over, nothing follows. kSwitchLost: the switch may be gone; else the job has ended.
    virtual void on_path_end(SwitchPath* path, const Status& status) = 0;
    virtual void on_mismatch(SwitchPath* path, uint32_t op, const std::string& text) = 0;
    // A rank has left, after so many operations.
    virtual void on_left(SwitchPath* path, uint32_t started, const std::string& text) = 0;
    virtual void on_stall_text(SwitchPath* path, uint32_t op, const std::string& text) = 0;
    virtual control::KeepAlive progress(SwitchPath* path) = 0;
  };

  struct Config {
    const SettingValues* settings = nullptr;
    uint32_t rank = 0;
    uint32_t ranks = 0;
    DpdkDevice* device = nullptr;             // null: kernel sockets; outlives the path
    std::string card;                         // for the controller to hand on; "" if the ranks know each other
    bool retain = false;                      // keep the last answers, for the ranks that lack them when the switch dies
    const std::atomic<bool>* stop = nullptr;  // set: the join gives up soon
    std::function<void(const std::string& text)> on_waiting;  // for whom the controller waits, again and again
    uint32_t failovers = 0;                                   // so far, for the controller to show
    TransportWrapper wrap;
  };

  // What gatun_comm_stats says of it.
  struct Facts {
    uint32_t trees = 0, window = 0, payload_bytes = 0;
    std::string transport;
    std::string address;
    std::vector<int> cores;  // near the device
  };

  // Blocks until all ranks have joined and every data path is proven, or an error. cards: what the controller said of the
  // other ranks, also when the join fails behind that.
  static Result<std::unique_ptr<SwitchPath>> join(const Config& config, std::unique_ptr<ControlConnection> connection,
                                                  TimeNs deadline, std::vector<std::string>* cards);
  // Without leave(), the controller tells the others that this rank is lost.
  ~SwitchPath() override = default;

  Status run(Events* events);  // starts listening to the controller
  void leave();                // orderly end, bounded; no event after it

  // To the controller. Any thread, never blocks.
  void send(control::Message message) { client_->send(std::move(message)); }

  Datapath& datapath() { return *datapath_; }
  Waiter& waiter() { return *waiter_; }
  const PathAgreement::Job& job() const { return job_; }
  const Facts& facts() const { return facts_; }

 private:
  SwitchPath() = default;
  Status attach_and_prove(const Config& config, const control::Admit& admit, TimeNs deadline);

  // ControlClient::Events.
  void on_end(const Status& status) override { events_->on_path_end(this, status); }
  void on_mismatch(uint32_t op, const std::string& text) override { events_->on_mismatch(this, op, text); }
  void on_left(uint32_t started, const std::string& text) override { events_->on_left(this, started, text); }
  void on_stall_text(uint32_t op, const std::string& text) override { events_->on_stall_text(this, op, text); }
  control::KeepAlive progress() override { return events_->progress(this); }

  Facts facts_;
  PathAgreement::Job job_;
  TimeNs keepalive_ = 0;
  Events* events_ = nullptr;
  std::unique_ptr<ControlClient> client_;
  std::unique_ptr<Waiter> waiter_;
  std::unique_ptr<Datapath> datapath_;
};

}  // namespace gatun
