// Health: the JSON of gatund's /health.
//
// A stalled job does not make the daemon look dead, since whoever watches daemons restarts those: /health is 200 while the
// daemon answers, whatever its jobs do. /health?job=NAME is about that job: 503 while it is stalled.
#pragma once

#include <string>
#include <string_view>

#include "switch_model/daemon/http_server.h"
#include "switch_model/daemon/snapshot.h"

namespace gatun {

// query: what stood behind the question mark: "", or "job=NAME" in the form of URLs.
HttpAnswer health(const Snapshot& snapshot, std::string_view query);

}  // namespace gatun
