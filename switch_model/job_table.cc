#include "switch_model/job_table.h"

#include <string>

namespace gatun {
namespace {

std::string mebibytes(uint64_t bytes) {
  const uint64_t tenths = (bytes * 10 + (1 << 20) - 1) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

}  // namespace

Status JobTable::admit(uint32_t job, const Need& need, TimeNs lease_until) {
  if (jobs_.contains(job)) return {Code::kInvalidArgument, "the job is already admitted"};
  const uint64_t memory_free = limits_.memory_bytes - memory_used_;
  if (need.memory_bytes > memory_free) {
    return {Code::kRefused, "the switch has " + mebibytes(memory_free) + " of its " + mebibytes(limits_.memory_bytes) +
                                " free and this job needs " + mebibytes(need.memory_bytes) +
                                ": raise gatund's setting memory, or lower trees, window or payload"};
  }
  if (need.trees > limits_.trees - trees_used_) {
    return {Code::kRefused, "the switch serves " + std::to_string(trees_used_) + " of at most " + std::to_string(limits_.trees) +
                                " trees and this job needs " + std::to_string(need.trees) + ": raise gatund's setting jobs"};
  }
  jobs_[job] = {need, lease_until};
  trees_used_ += need.trees;
  memory_used_ += need.memory_bytes;
  return {};
}

bool JobTable::renew(uint32_t job, TimeNs lease_until) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return false;
  found->second.lease_until = lease_until;
  return true;
}

bool JobTable::remove(uint32_t job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return false;
  trees_used_ -= found->second.need.trees;
  memory_used_ -= found->second.need.memory_bytes;
  jobs_.erase(found);
  return true;
}

bool JobTable::poll_expired(TimeNs now, uint32_t* job) const {
  for (const auto& [handle, entry] : jobs_) {
    if (entry.lease_until > now) continue;
    *job = handle;
    return true;
  }
  return false;
}

}  // namespace gatun
