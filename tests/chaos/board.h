// Board: what the processes of one round write for each other, in memory that they share. The program that runs the rounds
// makes it, and reads it when the round is over or hangs.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "protocols/time.h"

namespace gatun::chaos {

inline constexpr int kRanksMax = 5;

struct RankBoard {
  std::atomic<pid_t> pid;                         // 0: not there any more
  std::atomic<uint32_t> batches;                  // complete, of operations
  std::atomic<bool> joined;                       // its communicator is made, or could not be
  std::atomic<bool> ended;                        // its operations are over, well or not
  int create_code, code;                          // of the creation, and of the first operation that failed
  char error[512];                                // their sentence
  char wrong[512];                                // "": what was checked was right
  std::array<std::atomic<uint64_t>, 64> digests;  // of all results up to the end of each of the last batches
  TimeNs longest;                                 // operation, from its call to its end
  TimeNs destroy;                                 // took so long
  uint64_t operations, ring_operations, failovers;
};

struct Board {
  std::atomic<pid_t> gatund;    // 0: not there
  std::atomic<bool> on_switch;  // rank 0's operations go through it
  std::atomic<bool> enough;     // rank 0 may end the job when its own conditions hold
  std::array<RankBoard, kRanksMax> ranks;
  char verdict[2048];  // "": all was as it must be
};

}  // namespace gatun::chaos
