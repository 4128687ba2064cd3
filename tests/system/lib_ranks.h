// Ranks of one job as threads of the test's process or as child processes, each with its own communicator of the C API.
#pragma once

#include <functional>
#include <string>

#include "tests/system/lib_comm.h"
#include "tests/system/local_switch.h"

namespace gatun {

// Runs body(rank, comm) on a thread per rank. Failed checks of any thread fail the test: the body returns "" or what is
// wrong.
using RankBody = std::function<std::string(int rank, Comm& comm)>;
void run_ranks(int ranks, const RankOptions& options, const RankBody& body);

// The same in child processes, which are gone when it returns. They are forked before the switch starts its thread, and join
// it then. expect_killed: this rank ends by a signal.
void run_rank_processes(int ranks, RankOptions options, const RankBody& body, int expect_killed = -1);

}  // namespace gatun
