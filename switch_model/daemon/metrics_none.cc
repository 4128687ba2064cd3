// For builds without prometheus-cpp.
#include "switch_model/daemon/metrics.h"

namespace gatun {

const char* why_no_metrics() {
  return "this gatund was built without prometheus-cpp (Debian: prometheus-cpp-dev)";
}

std::string metrics_text(const Snapshot&) {
  return "";
}

}  // namespace gatun
