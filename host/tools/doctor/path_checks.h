// Data paths, tried with a job of two ranks that goes through the switch (trial.h): how large packets may be, and whether
// marks of congestion survive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "host/tools/doctor/findings.h"
#include "host/tools/doctor/switch_checks.h"
#include "host/tools/trial.h"

namespace gatun {

// The largest multiple of 64 from 64 to `most` that passes; 0 if none. Asks for several at once, and `most` among them.
uint32_t largest_passing(uint32_t most, const std::function<bool(uint32_t bytes)>& passes);

// Fills in what a job over UDP meets on the way, and whether it got there.
void check_udp_path(const std::string& job, const Route& route, Section* section);
// The same for the other transports, whose sentences say it all. if_refused: what lets the switch take such a job.
void check_path(const std::string& job, const std::string& transport, const char* if_refused, Section* section);

}  // namespace gatun
