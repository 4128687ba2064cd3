// The C API's size-first structs, read and written so that callers built against an older header are served.
#pragma once

#include "gatun/gatun.h"
#include "host/lib/communicator.h"

namespace gatun {

// call may be null. The tag is part of the contract.
Status read_call(const char* function, const gatun_call_t* call, Lane::Call* out, uint64_t* tag);

Status write_stats(const Communicator::Facts& facts, const Lane::Stats& stats, gatun_stats_t* out);

}  // namespace gatun
