// The way to the switch, up to its control channel: where it is, whether it lives, and which protocol it speaks.
#pragma once

#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/base/settings.h"
#include "host/tools/doctor/findings.h"
#include "host/tools/host_facts.h"

namespace gatun {

// What the kernel knows of the way to the switch's UDP port, without a packet.
struct Route {
  Endpoint peer, local;
  Device interface;            // the one that has the local address
  uint32_t payload_bytes = 0;  // most of one packet by the path's MTU
  // Of a packet on the wire, by its payload: with Gatun's header, UDP's and IP's.
  uint32_t packet_bytes(uint32_t payload) const;
  std::string folder() const { return "/sys/class/net/" + interface.name + "/device"; }
};
Result<Route> find_route(const std::string& address);

// Joins as rank 0 of 2 at the control channel, hears one message, and leaves. The address that answered and would take the
// job; "" if there is none.
std::string check_control(const SettingValues& settings, const std::string& job, Section* section);

}  // namespace gatun
