// Daemon: gatund put together. The main thread runs the control channel, admission and leases; each lane has its own thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/base/log.h"
#include "host/base/settings.h"
#include "host/transport/shm_door.h"
#include "switch_model/daemon/control_server.h"
#include "switch_model/daemon/lane.h"
#include "switch_model/job_table.h"

namespace gatun {

class Daemon {
 public:
  static Result<std::unique_ptr<Daemon>> make(const SettingValues& settings, const Log* log);

  uint16_t port() const { return server_->port(); }
  std::string describe() const;  // what it serves and what it may use, for the start line
  // Runs until signal_fd (a signalfd) becomes readable, then tells all jobs and returns.
  Status run(int signal_fd);

 private:
  struct Job {
    uint64_t token = 0;
    std::vector<LaneJob> lanes;                          // by lane index
    std::vector<std::shared_ptr<ShmArena>> shm_arenas;   // by lane, where any rank uses shm
    std::vector<std::vector<std::byte>> arenas;          // by lane, elsewhere
  };

  Daemon(const SettingValues& settings, const Log* log);
  Status open();
  Result<std::vector<Endpoint>> listen_addresses() const;
  void obey();
  Admission admit(const JobPlan& plan);
  Status prepare(const JobPlan& plan, uint32_t first_lane, Job* job);
  Status offer_shm(const JobPlan& plan, uint32_t lane, const ShmShape& shape, Job* job);
  void remove(uint32_t handle);
  void renew_leases(TimeNs now);

  SettingValues settings_;
  const Log* log_;
  std::unique_ptr<JobTable> table_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<ShmDoor> door_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ControlServer> server_;
  std::map<uint32_t, Job> jobs_;
  std::string addresses_text_;
  TimeNs renew_at_ = 0;
};

}  // namespace gatun
