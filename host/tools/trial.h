// A trial: a job of two ranks, both threads of this process, that joins, adds a few numbers and leaves. It meets what a real
// job of these settings would meet, because it is one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gatun/gatun.h"

namespace gatun {

struct Trial {
  std::string job;
  // As in gatun_options_t: "" and 0 leave it to the settings.
  std::string address, transport, fallback;
  int payload_bytes = 0;
  int64_t patience_ms = 10'000;  // for joining, and for the operation
  std::function<void()> joined;  // called by each rank before the operation; may be empty
};

struct Outcome {
  int code = GATUN_SUCCESS;
  std::string error;
  gatun_stats_t stats{};
};

Outcome try_job(const Trial& trial);  // of the rank that fared worse

}  // namespace gatun
