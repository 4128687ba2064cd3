// Which launcher started this process, and as which rank: torchrun, Open MPI's mpirun, a PMI launcher (MPICH), or srun.
//
// A pure function of the environment, so that it is testable. The job name comes from the launcher's own run id, so that two
// runs on one switch do not meet, while all ranks of one run do.
#pragma once

#include <functional>
#include <string>

namespace gatun::perf {

struct Launch {
  std::string launcher;  // "torchrun", "mpirun", "pmi", "srun"; "" when this process was started by hand
  int rank = 0;
  int size = 1;
  std::string job;  // "" when not launched
};

using GetEnv = std::function<const char*(const char*)>;

// Returns "" and fills launch, or the sentence that says what is wrong with which variable.
std::string detect_launch(const GetEnv& get_env, Launch* launch);

}  // namespace gatun::perf
