// The flags of `gatun sim net`.
#pragma once

#include <string>

#include "experiments/net/scenario.h"

namespace gatun::net {

struct Options {
  Scenario scenario;
  bool compare = false, json = false;
};

// 0: go on; else the process's exit code plus 1 (1 after --help). Errors are said on stderr.
int parse(int argc, char** argv, Options* options);

}  // namespace gatun::net
