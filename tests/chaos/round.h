// Round: one job's life under faults, in a process of its own: it starts the gatund and the ranks, does to them what the
// plan says, waits for their end and judges it.
#pragma once

#include <string>

#include "tests/chaos/board.h"
#include "tests/chaos/plan.h"

namespace gatun::chaos {

// The process of a round, forked by `parent`: never returns. ip: a loopback address that no other round uses now. When it is
// told to end (SIGTERM), or its parent has ended, it ends its own children first.
[[noreturn]] void be_round(pid_t parent, const Plan& plan, const std::string& ip, Board* board);

}  // namespace gatun::chaos
