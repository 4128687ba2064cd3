// Where the daemon can be reached: TCP for the control channel and, at the same number and up, one UDP socket per lane, on
// every address that it serves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/base/settings.h"
#include "host/transport/udp.h"

namespace gatun {

struct Sockets {
  uint16_t port = 0;
  std::vector<Endpoint> endpoints;
  std::vector<Fd> listeners;                                  // non-blocking, one per endpoint
  std::vector<std::vector<std::unique_ptr<Transport>>> hubs;  // by lane, one per endpoint; none without udp
};

// Opens all of it or nothing. The error names the address, the port and what to do. udp: options of every UDP socket; its
// buffers are the total, which the sockets share evenly, each with at least buffers_min.
Result<Sockets> open_sockets(const SettingValues& settings, bool with_udp, const UdpOptions& udp, uint32_t buffers_min);

}  // namespace gatun
