// Communicator: one rank's membership of one job: control client, lane, and what binds them. One rank alone needs no switch:
// every operation is a copy.
//
// Thread-safe, except that nothing may be called during or after destruction. The control client's thread and the lane's
// driving thread call the two Events interfaces.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "host/base/log.h"
#include "host/base/settings.h"
#include "host/lib/attach.h"
#include "host/lib/control_client.h"
#include "host/lib/lane.h"

namespace gatun {

class Communicator final : private Lane::Events, private ControlClient::Events {
 public:
  struct Config {
    SettingValues settings;
    uint32_t rank = 0;
    uint32_t ranks = 1;
    TransportWrapper wrap;  // tests
  };

  // What gatun_comm_stats says beside the lane's numbers.
  struct Facts {
    uint32_t rank = 0, ranks = 0, trees = 0, window = 0, payload_bytes = 0;
    std::string transport;
    std::string address;
  };

  static Result<std::unique_ptr<Communicator>> create(Config config);
  // Completes what is pending, bounded by its timeouts, and leaves.
  ~Communicator() override;

  Status start(const Contract& contract, const void* send, void* recv, const Lane::Call& call, Request** request);
  Status run(const Contract& contract, const void* send, void* recv);
  bool test(Request* request) { return !lane_ || lane_->test(request); }
  bool wait(Request* request, TimeNs until) { return !lane_ || lane_->wait(request, until); }
  Status take(Request* request);

  void abort_job(const std::string& reason);
  Status failure() const;

  const Facts& facts() const { return facts_; }
  const Log& log() const { return log_; }
  Lane::Stats stats();

 private:
  explicit Communicator(Config config);
  Status connect();
  Status attach_and_prove(const control::Admit& admit, TimeNs deadline);
  Status run_alone(const Contract& contract, const void* send, void* recv);

  // Lane::Events.
  void on_refused(uint32_t op, const Contract& contract) override;
  void on_stalled(uint32_t op, uint64_t missing_ranks) override;
  void on_timed_out(const Status& status) override;
  // ControlClient::Events.
  void on_end(const Status& status) override;
  void on_mismatch(uint32_t op, const std::string& text) override;
  void on_left(uint32_t started, const std::string& text) override;
  void on_stall_text(uint32_t op, const std::string& text) override;
  control::KeepAlive progress() override;

  const Config config_;
  const Log log_;
  Facts facts_;
  std::unique_ptr<ControlClient> client_;  // null when alone
  std::unique_ptr<Lane> lane_;             // null when alone; goes before the client, which it calls

  // Alone.
  mutable std::mutex mutex_;
  RequestPool pool_{0};
  uint64_t operations_ = 0;
  Status failure_;
};

}  // namespace gatun
