// The kinds of transport that run over DPDK, or between DPDK and kernel sockets.
#pragma once

#include "tests/conformance/harness.h"

namespace gatun::conformance {

// "dpdk4" and "dpdk6": af_packet at both ends of a veth pair. "dpdk_hub" and "dpdk_link": DPDK at that end, kernel sockets
// at the other. "vhost", "vhost6" and "virtio": vhost and virtio_user, which need no root; the hub is on the one that names
// the kind. "memif": both ends in this process, the hub on its server.
bool is_dpdk(const std::string& kind);
std::string missing_for_dpdk(const std::string& kind);
std::unique_ptr<Harness> make_dpdk_harness(const std::string& kind, const HarnessOptions& options);

}  // namespace gatun::conformance
