// The sections of `gatun doctor`, one for each thing that a job may go by.
#pragma once

#include <string>
#include <vector>

#include "host/base/settings.h"
#include "host/tools/doctor/findings.h"
#include "host/tools/doctor/host_view.h"
#include "host/tools/doctor/switch_checks.h"

namespace gatun {

struct Visit {
  const SettingValues& settings;
  HostView host;
  std::string job;            // no other job has this name
  std::vector<int> cores;     // that this process may run on
  Result<Route> route;        // to the switch
  bool switch_lives = false;  // and takes jobs of these settings
};

Section shm_section(const Visit& visit);
Section udp_section(const Visit& visit);
Section verbs_section(const Visit& visit);
Section dpdk_section(const Visit& visit);
Section fallback_section(const Visit& visit);  // and whether a GPU's ring is there

}  // namespace gatun
