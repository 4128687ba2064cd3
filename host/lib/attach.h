// Attach: from the controller's admission to proven data paths: opens the transports, and proves with packets of full size
// that every tree's switch hears this rank and this rank hears it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/lib/datapath.h"
#include "host/transport/dpdk_module.h"
#include "host/transport/transport.h"
#include "host/transport/waiter.h"
#include "protocols/control.h"
#include "protocols/status.h"

namespace gatun {

// What the udp path to this address carries, or the device if there is one: for the join request. Zero fields where there is
// neither.
struct PathFacts {
  uint32_t payload_bytes = 0;
  uint32_t receive_bytes = 0;
};
PathFacts udp_path_facts(const Endpoint& controller, const DpdkDevice* device);

// Puts something between the datapath and a transport, for tests; null: nothing.
using TransportWrapper = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>;

struct Attachment {
  std::vector<std::unique_ptr<Transport>> links;  // one per lane of the switch that serves a tree of ours
  std::vector<Datapath::TreePath> trees;
  std::unique_ptr<Waiter> waiter;         // watches all links
  bool reliable = false, intact = false;  // all links are
  std::vector<std::string> names;         // per link: "10.0.0.2:4711 to 10.0.0.1:7117/udp", for sentences
};

struct AttachRequest {
  const control::Admit* admit = nullptr;
  Endpoint controller;  // the data path is at the same IP address if admit names no other
  Endpoint local;       // this end of the control channel; RDMA goes by the device that has its address
  uint32_t rank = 0;
  DpdkDevice* device = nullptr;  // null: kernel sockets
  // Gives the switch the card of this rank's queue pair to a lane, returns that of the other end.
  std::function<Result<std::string>(uint8_t lane, const std::string& card)> exchange;
  TransportWrapper wrap;
};

Result<Attachment> attach(const AttachRequest& request, TimeNs deadline);

// Sends probes until every tree has answered. kTimeout: one is silent, and the sentence says between which addresses.
// kSwitchLost: small packets pass where full ones do not.
// kAborted: *stop was set (null: nothing stops it).
Status prove(const control::Admit& admit, const Attachment& attachment, TimeNs patience, const std::atomic<bool>* stop);

}  // namespace gatun
