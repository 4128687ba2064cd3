#include "switch_model/daemon/snapshot.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace gatun {
namespace {

void add_tree(const TreeView& tree, TimeNs now, Snapshot::Job* job) {
  ++job->trees;
  job->banks += tree.banks;
  job->open += tree.open;
  job->stats += tree.stats;
  const TimeNs waited = tree.waiting_since == kNever ? 0 : now - tree.waiting_since;
  if (waited <= job->waited) return;
  job->waited = waited;
  job->operation = tree.operation;
  job->missing.clear();
  for (uint32_t rank = 0; rank < kRanksMax; ++rank) {  // gatund makes rank k the child k
    if (tree.missing >> rank & 1) job->missing.push_back(rank);
  }
}

}  // namespace

std::string valid_utf8(const std::string& text) {
  const nlohmann::json json = text;
  return nlohmann::json::parse(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).get<std::string>();
}

Snapshot make_snapshot(const ControlFacts& facts, const std::vector<const Lane::View*>& views, TimeNs stall_limit,
                       TimeNs now) {
  Snapshot snapshot{.memory_bytes = facts.counts.memory_bytes, .connections = facts.connections, .refusals = facts.refusals};
  std::map<uint32_t, size_t> places;  // by handle
  std::set<std::string> names;
  for (const ControlFacts::Job& known : facts.jobs) {
    places[known.state.job] = snapshot.jobs.size();
    Snapshot::Job& job = snapshot.jobs.emplace_back();
    job.handle = known.state.job;
    job.name = valid_utf8(known.state.name);
    if (!names.insert(job.name).second) names.insert(job.name += " #" + std::to_string(job.handle));
    job.state = known.state.running ? Snapshot::kRunning : Snapshot::kJoining;
    job.ranks = known.state.ranks;
    job.joined = known.state.joined;
    job.memory_bytes = known.memory_bytes;
    job.stalls = known.state.stalls;
    job.failovers = known.state.failovers;
  }
  for (const Lane::View* view : views) {
    snapshot.lanes.push_back(view->stats);
    for (size_t i = 0; i < view->count; ++i) {
      // A lane may have a job that the control thread did not have yet, or has no more.
      const auto place = places.find(view->trees[i].job);
      if (place != places.end()) add_tree(view->trees[i], now, &snapshot.jobs[place->second]);
    }
  }
  for (Snapshot::Job& job : snapshot.jobs) {
    if (job.state == Snapshot::kRunning && stall_limit > 0 && job.waited > stall_limit) job.state = Snapshot::kStalled;
  }
  return snapshot;
}

}  // namespace gatun
