#include "host/lib/attach.h"

#include <algorithm>

#include "host/transport/shm.h"
#include "host/transport/udp.h"

namespace gatun {
namespace {

constexpr uint32_t kBuffers = 512;  // received packets unreleased at once: a burst, and what GRO merged
constexpr uint32_t kFactsBuffers = 1;

struct Opened {
  std::unique_ptr<Transport> transport;
  std::string name;
};

Result<Opened> open_udp(const Endpoint& controller, uint16_t port) {
  Endpoint peer = controller;
  peer.set_port(port);
  Result<std::unique_ptr<UdpLink>> link = UdpLink::make(peer, {.buffers = kBuffers});
  if (!link.ok()) return link.status();
  const std::string name = link.value()->local().text() + " to " + peer.text() + "/udp";
  return Opened{std::move(link.value()), name};
}

Result<Opened> open_shm(const AttachRequest& request, uint8_t lane, TimeNs deadline) {
  const std::string& door = request.admit->shm_socket;
  Result<ShmTicket> ticket =
      shm_connect(door, {.token = request.admit->token, .rank = request.rank, .lane = lane}, deadline - now_ns());
  if (!ticket.ok()) {
    return Status(ticket.status().code(), std::string(ticket.status().message()) +
                                              " (if this process cannot share memory with gatund, "
                                              "set GATUN_TRANSPORT=udp on all ranks)");
  }
  Result<std::unique_ptr<ShmLink>> link = ShmLink::make(std::move(ticket.value()));
  if (!link.ok()) return link.status();
  return Opened{std::move(link.value()), "this process to gatund at " + request.controller.text() + "/shm"};
}

}  // namespace

PathFacts udp_path_facts(const Endpoint& controller) {
  Result<std::unique_ptr<UdpLink>> link =
      UdpLink::make(controller, {.buffers = kFactsBuffers});
  if (!link.ok()) return {};
  const TransportCaps caps = link.value()->caps();
  return {.payload_bytes = caps.payload_bytes_max, .receive_bytes = caps.receive_bytes};
}

Result<Attachment> attach(const AttachRequest& request, TimeNs deadline) {
  const control::Admit& admit = *request.admit;
  const bool shm = admit.transport == control::TransportChoice::kShm;
  Attachment attachment;
  Result<std::unique_ptr<Waiter>> waiter = Waiter::make();
  if (!waiter.ok()) return waiter.status();
  attachment.waiter = std::move(waiter.value());
  attachment.reliable = attachment.intact = true;

  std::vector<uint8_t> lanes;      // by link
  std::vector<uint32_t> trees_of;  // by link
  for (const control::Admit::Tree& tree : admit.trees) {
    size_t link = static_cast<size_t>(std::find(lanes.begin(), lanes.end(), tree.lane) - lanes.begin());
    if (link == lanes.size()) {
      Result<Opened> opened = shm ? open_shm(request, tree.lane, deadline) : open_udp(request.controller, tree.port);
      if (!opened.ok()) return opened.status();
      std::unique_ptr<Transport> transport = std::move(opened->transport);
      if (request.wrap) transport = request.wrap(std::move(transport));
      attachment.reliable &= transport->caps().reliable;
      attachment.intact &= transport->caps().intact;
      if (Status status = attachment.waiter->add(transport.get()); !status.ok()) return status;
      lanes.push_back(tree.lane);
      trees_of.push_back(0);
      attachment.names.push_back(std::move(opened->name));
      attachment.links.push_back(std::move(transport));
    }
    // In shared memory this tree's places follow those of the trees before it on the same lane.
    const std::span<std::byte> arena = attachment.links[link]->arena(0);
    const size_t place = size_t{trees_of[link]++} * admit.window * admit.payload_bytes;
    if (!arena.empty() && arena.size() < place + size_t{admit.window} * admit.payload_bytes) {
      return Status(Code::kInternal,
                    "gatund gave shared memory that is too small for " + std::to_string(admit.trees.size()) + " trees");
    }
    attachment.trees.push_back({.link = static_cast<uint32_t>(link),
                                .peer = 0,
                                .child = tree.child,
                                .arena = arena.empty() ? nullptr : arena.data() + place});
  }
  return attachment;
}

}  // namespace gatun
