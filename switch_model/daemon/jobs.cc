#include "switch_model/daemon/jobs.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gatun {

Jobs::Jobs(const JobTable::Config& config, Place place, ShmDoor* door, const VerbsDevices& devices, std::vector<Lane*> lanes)
    : table_(config), place_(std::move(place)), door_(door), devices_(devices), lanes_(std::move(lanes)) {}

Jobs::~Jobs() {
  while (!served_.empty()) remove(served_.begin()->first);
}

Admission Jobs::admit(const JobPlan& plan, TimeNs now) {
  Result<JobTable::Placement> placement = table_.admit(plan, now);
  if (!placement.ok()) return {.status = placement.status()};
  Served served{.token = plan.token};
  Status status;
  try {
    status = serve(plan, placement.value(), &served);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kSystem, "the switch is out of memory");
  }
  if (!status.ok()) {
    clear(plan.job, served);
    table_.remove(plan.job);
    return {.status = status};
  }
  Admission admission{.window = placement->window, .payload_bytes = placement->payload_bytes};
  for (const uint8_t lane : placement->lanes) {
    admission.trees.push_back({.port = static_cast<uint16_t>(place_.port + lane), .lane = lane});
  }
  if (door_) admission.shm_socket = door_->name();
  admission.data_ip = place_.data_ip;
  served_[plan.job] = std::move(served);
  return admission;
}

Status Jobs::serve(const JobPlan& plan, const JobTable::Placement& placement, Served* served) {
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (Status status = serve_lane(plan, placement, lane, served); !status.ok()) return status;
  }
  return {};
}

// The job's trees on one lane: results in one arena, which the lane's shm links see; one link per rank that shares memory.
Status Jobs::serve_lane(const JobPlan& plan, const JobTable::Placement& placement, uint32_t lane, Served* served) {
  std::vector<Lane::Tree> trees;
  for (uint32_t tree = 0; tree < plan.trees; ++tree) {
    if (placement.lanes[tree] != lane) continue;
    TreeSpec& spec = trees.emplace_back().spec;
    spec.job = plan.job;
    spec.token = plan.token;
    spec.tree = static_cast<uint8_t>(tree);
    spec.window = placement.window;
    spec.payload_bytes = placement.payload_bytes;
    for (uint32_t rank = 0; rank < plan.ranks; ++rank) spec.child_ranks.push_back({static_cast<uint16_t>(rank)});
  }
  if (trees.empty()) return {};
  const ShmShape shape = ShmShape::make(static_cast<uint32_t>(trees.size()), placement.window, placement.payload_bytes);
  Result<std::shared_ptr<ShmArena>> arena = ShmArena::make(shape.result_bytes);
  if (!arena.ok()) return arena.status();
  size_t offset = 0;
  for (Lane::Tree& tree : trees) {
    tree.arena = arena.value()->bytes().subspan(offset, tree.spec.arena_bytes());
    offset += tree.spec.arena_bytes();
  }
  served->lanes.push_back({.lane = lane, .shape = shape, .arena = arena.value(), .awaited = plan.verbs});
  std::vector<std::unique_ptr<ShmPort>> ports;
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
    if (!plan.shm[rank]) continue;
    ShmTicket ticket;
    Result<std::unique_ptr<ShmPort>> port = ShmPort::make(shape, arena.value(), &ticket);
    if (!port.ok()) return port.status();
    ports.push_back(std::move(port.value()));
    door_->offer({.token = plan.token, .rank = rank, .lane = lane}, std::move(ticket));
  }
  return lanes_[lane]->admit(plan.job, std::move(trees), std::move(ports));
}

Result<size_t> Jobs::device_with(const VerbsGid& gid) const {
  for (size_t device = 0; device < devices_.size(); ++device) {
    if (devices_[device]->has(gid)) return device;
  }
  return find_verbs(devices_, gid).status();
}

Result<std::string> Jobs::attach(uint32_t job, uint32_t rank, const control::Attach& attach) {
  const auto found = served_.find(job);
  if (found == served_.end()) return Status(Code::kInternal, "the job is not here");
  auto& lanes = found->second.lanes;
  const auto on = std::find_if(lanes.begin(), lanes.end(), [&](const auto& on_lane) { return on_lane.lane == attach.lane; });
  const Result<VerbsCard> card = VerbsCard::decode(attach.card);
  if (!card.ok()) return card.status();
  if (on == lanes.end() || rank >= on->awaited.size() || !on->awaited[rank] || card.value().shape != on->shape) {
    return Status(Code::kRefused, "no queue pair of that shape is awaited there");
  }
  const Result<size_t> device = device_with(card.value().peer_gid);
  if (!device.ok()) return device.status();
  VerbsHub& hub = lanes_[attach.lane]->verbs(device.value());
  std::shared_ptr<VerbsGroup>& group = on->groups[device.value()];
  if (group == nullptr) {
    Result<std::shared_ptr<VerbsGroup>> made = hub.make_group(on->arena->bytes());
    if (!made.ok()) return made.status();
    group = std::move(made.value());
  }
  Result<std::unique_ptr<VerbsPort>> port = hub.make_port(card.value(), group);
  if (!port.ok()) return port.status();
  const std::string answer = port.value()->card();
  if (Status status = lanes_[attach.lane]->attach(job, device.value(), std::move(port.value())); !status.ok()) return status;
  on->awaited[rank] = false;
  return answer;
}

void Jobs::clear(uint32_t job, const Served& served) {
  if (door_) door_->withdraw_all(served.token);
  for (const auto& on : served.lanes) lanes_[on.lane]->remove(job);
}

void Jobs::remove(uint32_t job) {
  const auto found = served_.find(job);
  if (found != served_.end()) {
    clear(job, found->second);
    served_.erase(found);
  }
  table_.remove(job);  // not there if it was never admitted
}

uint32_t Jobs::remove_expired(TimeNs now) {
  uint32_t count = 0, job = 0;
  for (; table_.poll_expired(now, &job); ++count) remove(job);
  return count;
}

Jobs::Counts Jobs::counts() const {
  return {.jobs = table_.jobs(),
          .trees = table_.trees(),
          .memory_bytes = table_.memory_bytes(),
          .offers = door_ ? door_->offers() : 0};
}

}  // namespace gatun
