// Metrics: a snapshot in Prometheus' text format. Series carry the job's name and, where it matters, the rank; those of a
// finished job are gone with it.
#pragma once

#include <string>

#include "switch_model/daemon/snapshot.h"

namespace gatun {

// Why there are none in this build; null: there are.
const char* why_no_metrics();
std::string metrics_text(const Snapshot& snapshot);

}  // namespace gatun
