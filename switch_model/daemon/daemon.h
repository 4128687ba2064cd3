// Daemon: gatund put together. The main thread runs the control channel, admission and leases; each lane has its own thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/log.h"
#include "host/base/settings.h"
#include "host/transport/dpdk_module.h"
#include "host/transport/shm_door.h"
#include "switch_model/daemon/control_server.h"
#include "switch_model/daemon/jobs.h"
#include "switch_model/daemon/lane.h"
#include "switch_model/daemon/listen.h"
#include "switch_model/daemon/monitor.h"

namespace gatun {

class Daemon {
 public:
  static Result<std::unique_ptr<Daemon>> make(const Settings& settings, const Log* log);

  uint16_t port() const { return port_; }
  std::string describe() const;  // what it serves and what it may use, for the start line
  // Runs until a signal comes by signal_fd (a signalfd), then tells all jobs and returns. SIGUSR1 only logs the counters.
  Status run(int signal_fd);

 private:
  Daemon(const SettingValues& settings, const Log* log);
  Status open(const Settings& settings);
  Status open_verbs_devices(SwitchFacts* facts);
  Status open_device();
  std::string why_auto(const SwitchFacts& facts) const;
  Status open_lanes(Sockets* sockets, uint32_t udp_buffers, SwitchFacts* facts);
  Result<std::vector<std::unique_ptr<Transport>>> hubs_of_lane(uint32_t lane, Sockets* sockets);
  bool on_signal(int signal_fd);
  void obey();
  void say(const std::string& line);
  void renew_leases(TimeNs now);
  std::string counters();
  ControlFacts facts() const;

  SettingValues settings_;
  const Log* log_;
  bool with_udp_ = false, with_shm_ = false;
  uint16_t port_ = 0;
  std::string addresses_text_;
  VerbsDevices devices_;
  std::shared_ptr<DpdkDevice> device_;  // null: kernel sockets
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<ShmDoor> door_;
  std::unique_ptr<Jobs> jobs_;  // goes before the lanes and the door, which it uses
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<Monitor> monitor_;  // null: off
  TimeNs renew_at_ = 0;
  TimeNs log_second_ = 0;
  uint32_t lines_in_second_ = 0;
};

}  // namespace gatun
