// What users read when an operation is late or refused. Pure.
#pragma once

#include <string>

#include "host/lib/datapath.h"
#include "host/lib/request.h"

namespace gatun {

// "rank 2", "ranks 1, 3 and 5", "12 ranks (1, 2, 3, ...)".
std::string rank_list(uint64_t ranks);

// "allreduce of 1048576 f32, sum (operation 17) timed out after 30s: rank 2 has not contributed to chunk 1234 of tree 0
// (switch 127.0.0.1:7117)", and what the controller knows of the late ranks.
std::string timeout_sentence(const Request& request, const Datapath::Stall& stall, const std::string& switch_name,
                             const std::string& known, TimeNs now);

// The same, while there is still time.
std::string stall_sentence(const Request& request, const Datapath::Stall& stall, const std::string& switch_name, TimeNs now);

// The same without the switch. awaited: "rank 2 (host b, pid 77) has not called it", "" if it waits for none.
std::string ring_timeout_sentence(const Request& request, const std::string& awaited);
std::string ring_stall_sentence(const Request& request, const std::string& awaited, TimeNs now);

// An operation (null: none is announced) ends because another rank's time is over; by: "rank 2 (host b, pid 77)".
std::string ring_asked_sentence(const Request* request, const std::string& by);

// A refused operation of which the controller said nothing in time.
std::string refused_sentence(const Request& request);

}  // namespace gatun
