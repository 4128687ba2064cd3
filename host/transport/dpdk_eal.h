// DPDK's environment, started once per process by whoever needs it first, and never ended: it cannot be started again.
//
// It starts in a thread of its own, so that the caller keeps its affinity and signal mask, and prints nothing: what it says
// is kept for the sentence of an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocols/status.h"

namespace gatun {

struct EalNeeds {
  std::vector<std::string> arguments;  // the user's, behind ours
  std::string pci;                     // the address of the network card; "": none, and no card is touched
  uint64_t memory_bytes = 0;           // for packet buffers

  // With fewer bytes of huge pages free, ordinary memory is taken.
  uint64_t huge_bytes() const { return 2 * memory_bytes; }
};

// Any thread. After the first call it only says how that went.
Status start_eal(const EalNeeds& needs);

// The last lines that DPDK has said, for a sentence: "; DPDK says: ..." or "".
std::string eal_says();
void forget_what_eal_said();

}  // namespace gatun
