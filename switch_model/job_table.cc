#include "switch_model/job_table.h"

#include <algorithm>
#include <string>

namespace gatun {
namespace {

// A new job takes at most this part of what is free, so that the first ones do not take everything; less when more than half
// is taken. It gives up window first, but not below kWindowSmall before its chunks are small: a window of a few large
// chunks keeps the switch as busy as one of many small ones.
constexpr uint64_t kPartOfFree = 8, kPartOfFreeLate = 16;
constexpr uint32_t kWindowSmall = 4, kWindowLeast = 2;
constexpr uint32_t kPayloadSmall = 4096;

bool is_modest(uint64_t need, uint64_t used, uint64_t limit) {
  const uint64_t free = limit - used;
  return need * (2 * free > limit ? kPartOfFree : kPartOfFreeLate) <= free;
}

uint32_t count_links(const JobPlan& plan) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) count += plan.linked(rank);
  return count;
}

std::string mib(uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + "M";
}

}  // namespace

JobTable::JobTable(const Config& config) : config_(config), lanes_(config.lanes) {
  GATUN_CHECK(config.lanes >= 1 && config.jobs_max >= 1);
}

uint32_t JobTable::trees() const {
  uint32_t sum = 0;
  for (const Lane& lane : lanes_) sum += lane.trees;
  return sum;
}

Result<JobTable::Placement> JobTable::admit(const JobPlan& plan, TimeNs now) {
  if (jobs_.count(plan.job) != 0) return Status(Code::kInternal, "the job is already here");
  if (jobs_.size() >= config_.jobs_max) {
    return Status(Code::kRefused, "the switch already serves its maximum of " + std::to_string(config_.jobs_max) +
                                      " jobs; raise its setting jobs");
  }
  Placement placement = place(plan);
  const bool all_linked = count_links(plan) == plan.ranks;
  // A udp packet is small for its path already; memory at both sides can be cut finer.
  while (!modest(placement) || !fits(placement).ok()) {
    if (placement.window > kWindowSmall) {
      placement.window /= 2;
    } else if (all_linked && placement.payload_bytes >= 2 * kPayloadSmall) {
      placement.payload_bytes = placement.payload_bytes / 2 / 64 * 64;
    } else if (placement.window > kWindowLeast) {
      placement.window /= 2;
    } else {
      break;
    }
    measure(plan, &placement);
  }
  if (Status status = fits(placement); !status.ok()) return status;
  jobs_[plan.job] = Job{placement, now + config_.lease};
  memory_bytes_ += placement.memory_bytes;
  for (const uint8_t lane : placement.lanes) {
    ++lanes_[lane].trees;
    lanes_[lane].packets += placement.packets;
  }
  return placement;
}

// Each tree goes to the lane with the fewest.
JobTable::Placement JobTable::place(const JobPlan& plan) const {
  Placement placement{.window = plan.window, .payload_bytes = plan.payload_bytes};
  std::vector<uint32_t> trees;
  for (const Lane& lane : lanes_) trees.push_back(lane.trees);
  for (uint32_t tree = 0; tree < plan.trees; ++tree) {
    const auto lane = std::min_element(trees.begin(), trees.end());
    ++*lane;
    placement.lanes.push_back(static_cast<uint8_t>(lane - trees.begin()));
  }
  measure(plan, &placement);
  return placement;
}

void JobTable::measure(const JobPlan& plan, Placement* placement) const {
  const auto linked_ranks = uint64_t{count_links(plan)};
  const uint64_t arena_bytes = uint64_t{2} * placement->window * placement->payload_bytes;
  placement->memory_bytes = plan.trees * arena_bytes;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto trees = std::count(placement->lanes.begin(), placement->lanes.end(), static_cast<uint8_t>(lane));
    if (trees == 0 || linked_ranks == 0) continue;
    GATUN_CHECK(config_.link_bytes != nullptr);
    placement->memory_bytes +=
        linked_ranks * config_.link_bytes(static_cast<uint32_t>(trees), placement->window, placement->payload_bytes);
  }
  // A rank has at most W unanswered contributions on a tree.
  placement->packets = (plan.ranks - static_cast<uint32_t>(linked_ranks)) * placement->window;
}

bool JobTable::modest(const Placement& placement) const {
  if (!is_modest(placement.memory_bytes, memory_bytes_, config_.memory_bytes)) return false;
  for (uint32_t lane = 0; lane < lanes_.size() && config_.packets_max != 0; ++lane) {
    const auto trees = static_cast<uint64_t>(std::count(placement.lanes.begin(), placement.lanes.end(), lane));
    if (!is_modest(trees * placement.packets, lanes_[lane].packets, config_.packets_max)) return false;
  }
  return true;
}

Status JobTable::fits(const Placement& placement) const {
  const uint64_t free_bytes = config_.memory_bytes - memory_bytes_;
  if (placement.memory_bytes > free_bytes) {
    return Status(Code::kRefused, "it needs " + mib(placement.memory_bytes) + " of memory, and " + mib(free_bytes) + " of " +
                                      mib(config_.memory_bytes) +
                                      " are free; raise the switch's setting memory, or lower the job's trees or payload");
  }
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto trees = static_cast<uint64_t>(std::count(placement.lanes.begin(), placement.lanes.end(), lane));
    if (lanes_[lane].trees + trees > config_.trees_max) {
      return Status(Code::kRefused, "lane " + std::to_string(lane) + " of the switch already serves " +
                                        std::to_string(lanes_[lane].trees) + " of at most " +
                                        std::to_string(config_.trees_max) + " trees; lower the job's trees");
    }
    if (config_.packets_max != 0 && lanes_[lane].packets + trees * placement.packets > config_.packets_max) {
      return Status(Code::kRefused, "it may have to hold " + std::to_string(trees * placement.packets) + " packets, and " +
                                        std::to_string(config_.packets_max - lanes_[lane].packets) + " of " +
                                        std::to_string(config_.packets_max) + " buffers of lane " + std::to_string(lane) +
                                        " are free; raise the switch's setting memory, or lower the job's trees");
    }
  }
  return {};
}

bool JobTable::remove(uint32_t job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return false;
  const Placement& placement = found->second.placement;
  memory_bytes_ -= placement.memory_bytes;
  for (const uint8_t lane : placement.lanes) {
    --lanes_[lane].trees;
    lanes_[lane].packets -= placement.packets;
  }
  jobs_.erase(found);
  return true;
}

void JobTable::renew(uint32_t job, TimeNs now) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) found->second.lease_end = now + config_.lease;
}

bool JobTable::poll_expired(TimeNs now, uint32_t* job) const {
  for (const auto& [handle, entry] : jobs_) {
    if (entry.lease_end > now) continue;
    *job = handle;
    return true;
  }
  return false;
}

TimeNs JobTable::poll_timer() const {
  TimeNs next = kNever;
  for (const auto& [handle, entry] : jobs_) next = std::min(next, entry.lease_end);
  return next;
}

}  // namespace gatun
