// One rank's life: it joins, completes batches of operations and checks each, until rank 0 says that it is enough or an
// error ends the job, and leaves. What it finds goes to the board.
#pragma once

#include <string>

#include "tests/chaos/board.h"
#include "tests/chaos/plan.h"

namespace gatun::chaos {

struct Addresses {
  std::string gatund, rendezvous;
};

void live(const Plan& plan, int rank, const Addresses& addresses, Board* board);

}  // namespace gatun::chaos
