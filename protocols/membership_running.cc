// Membership of running jobs: reports of refused operations, questions about stalled ones, signs of life, deadlines.
#include <algorithm>

#include "protocols/membership_state.h"
#include "protocols/words.h"

namespace gatun {
namespace {

constexpr size_t kCollectionsMax = 8;  // refused operations of one job that are being collected
constexpr size_t kAnsweredKept = 8;    // texts kept for ranks that report late

}  // namespace

std::string list_ranks(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i == 2) text += ", " + std::to_string(ranks[end - 1]);
    if (end - i > 2) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string name_ranks(const std::vector<uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_ranks(ranks);
}

std::string spell_time(TimeNs duration) {
  if (duration < 10 * kSecond && duration % kSecond != 0) return std::to_string(duration / kMs) + " ms";
  return std::to_string(duration / kSecond) + " s";
}

void Membership::on_report(Job& job, Member& member, const control::Report& report, TimeNs now) {
  if (job.state != Job::kRunning) return;
  for (const control::Mismatch& answer : job.answered) {
    if (answer.op == report.op) return sends_.emplace_back(member.conn, answer), void();
  }
  auto found =
      std::find_if(job.collections.begin(), job.collections.end(), [&](const Collection& c) { return c.op == report.op; });
  if (found == job.collections.end()) {
    if (job.collections.size() == kCollectionsMax) {
      answer_reports(job, job.collections.front());
      job.collections.pop_front();
    }
    found =
        job.collections.insert(job.collections.end(), Collection{.op = report.op, .deadline = now + config_.report_wait});
  }
  found->contracts[member.rank] = report.contract;
  const bool complete = std::all_of(job.members.begin(), job.members.end(),
                                    [&](const auto& m) { return m->left || found->contracts.count(m->rank) != 0; });
  if (!complete) return;
  answer_reports(job, *found);
  job.collections.erase(found);
}

// One text for all, ranks with the same contract in one group, groups in the order of their lowest rank.
void Membership::answer_reports(Job& job, const Collection& collection) {
  std::vector<std::pair<Contract, std::vector<uint32_t>>> groups;
  std::vector<uint32_t> silent;
  for (uint32_t rank = 0; rank < job.size(); ++rank) {
    auto reported = collection.contracts.find(rank);
    if (reported == collection.contracts.end()) {
      silent.push_back(rank);
      continue;
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == reported->second; });
    if (group == groups.end()) group = groups.insert(groups.end(), {reported->second, {}});
    group->second.push_back(rank);
  }
  std::string text = "operation " + std::to_string(collection.op - config_.first_op);
  const bool differs = groups.size() > 1 || !silent.empty();
  text += differs ? " differs between ranks: " : " was refused, although all ranks report the same: ";
  for (size_t i = 0; i < groups.size(); ++i) {
    text += (i == 0 ? "" : "; ") + name_ranks(groups[i].second) + ": " + describe(groups[i].first);
  }
  if (!silent.empty()) {
    text += "; no report from " + name_ranks(silent) + " within " + spell_time(config_.report_wait);
    if (groups.size() == 1) text += " (a call of zero elements is over at once and may not report)";
  }
  log("job '" + job.plan.name + "': " + text);
  job.answered.push_back(control::Mismatch{.op = collection.op, .text = text});
  if (job.answered.size() > kAnsweredKept) job.answered.pop_front();
  for (const auto& [rank, contract] : collection.contracts) {
    if (!job.members[rank]->left) sends_.emplace_back(job.members[rank]->conn, job.answered.back());
  }
}

// A rank waits and asks why. Those it names are asked for their progress first, so that the answer is of now: a rank that
// runs answers within stall_wait; one that is stopped does not.
void Membership::on_stalled(Job& job, Member& member, const control::Stalled& stalled, TimeNs now) {
  if (job.state != Job::kRunning) return;
  ++job.stalls;
  Query query{.rank = member.rank, .op = stalled.op, .asked = now, .deadline = now + config_.stall_wait};
  for (uint16_t rank : stalled.ranks) {
    if (rank < job.size() && rank != member.rank) query.ranks.push_back(rank);
  }
  if (query.ranks.empty()) {
    for (uint32_t rank = 0; rank < job.size(); ++rank) {
      if (rank != member.rank) query.ranks.push_back(static_cast<uint16_t>(rank));
    }
  }
  std::sort(query.ranks.begin(), query.ranks.end());
  query.ranks.erase(std::unique(query.ranks.begin(), query.ranks.end()), query.ranks.end());
  for (uint16_t rank : query.ranks) {
    if (!job.members[rank]->left) sends_.emplace_back(job.members[rank]->conn, control::KeepAlive{.ask = 1});
  }
  // heard == asked would pass for an answer.
  for (uint16_t rank : query.ranks) job.members[rank]->heard = std::min(job.members[rank]->heard, now - 1);
  // The asker's own progress is right there in the message.
  member.started = std::max(member.started, stalled.op - config_.first_op + 1);
  std::erase_if(job.queries, [&](const Query& q) { return q.rank == member.rank; });
  if (!answer_query(job, query, now)) job.queries.push_back(std::move(query));
}

// True when the query is answered: all it names have spoken since, or its time is up.
bool Membership::answer_query(Job& job, const Query& query, TimeNs now) {
  const bool complete = std::all_of(query.ranks.begin(), query.ranks.end(), [&](uint16_t rank) {
    return job.members[rank]->left || job.members[rank]->heard >= query.asked;
  });
  if (!complete && now < query.deadline) return false;
  const uint32_t number = query.op - config_.first_op;
  std::string text = "operation " + std::to_string(number) + " of rank " + std::to_string(query.rank) + " waits for ";
  for (size_t i = 0; i < query.ranks.size(); ++i) {
    const Member& member = *job.members[query.ranks[i]];
    text += (i == 0 ? "" : "; ") + member.text();
    if (member.left) {
      text += ", which has left the job after " + counted(member.started, "operation");
    } else if (member.heard < query.asked) {
      text += ", which does not answer and was last heard " + spell_time(now - member.heard) + " ago";
    } else if (member.started <= number) {
      text += ", which has started only " + counted(member.started, "operation") + ", against " +
              std::to_string(job.members[query.rank]->started) + " of rank " + std::to_string(query.rank);
    } else if (member.finished > number) {
      text += ", which has finished it";
    } else {
      text += ", which has started it";
    }
  }
  log("job '" + job.plan.name + "' is stalled: " + text);
  sends_.emplace_back(job.members[query.rank]->conn, control::Stalled{.op = query.op, .ranks = query.ranks, .text = text});
  return true;
}

void Membership::on_timer(TimeNs now) {
  check_connections(now);
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    Job& job = *next->second;
    ++next;  // a job that ends erases only itself
    if (!check_deadlines(job, now)) continue;
    std::erase_if(job.queries, [&](const Query& query) { return answer_query(job, query, now); });
    while (!job.collections.empty() && job.collections.front().deadline <= now) {
      answer_reports(job, job.collections.front());
      job.collections.pop_front();
    }
    if (job.next_keepalive <= now) keep_alive(job, now);
    if (job.next_waiting <= now) say_waiting(job, now);
  }
}

void Membership::check_connections(TimeNs now) {
  for (auto& [id, connection] : connections_) {
    if (connection.close_at > now) continue;
    connection.close_at = kNever;
    if (connection.state == Connection::kHello) {
      refuse(id, connection, "the peer at " + connection.peer + " did not join within " + spell_time(config_.hello_timeout));
    } else {
      closes_.push_back(id);
    }
  }
}

bool Membership::check_deadlines(Job& job, TimeNs now) {
  std::vector<uint32_t> waiting;
  if (job.state == Job::kJoining) {
    bool late = false;
    TimeNs patience = 0;
    std::string here;
    for (uint32_t rank = 0; rank < job.size(); ++rank) {
      const auto& member = job.members[rank];
      if (!member) {
        waiting.push_back(rank);
        continue;
      }
      if (member->join_deadline <= now) {
        late = true;
        patience = member->patience;
      }
      here += (here.empty() ? "" : ", ") + std::to_string(rank) + " (" + member->join.host + ", pid " +
              std::to_string(member->join.pid) + ")";
    }
    if (!late) return true;
    std::string text = "job '" + job.plan.name + "' is not complete after " + spell_time(patience) + ": waiting for " +
                       name_ranks(waiting) + " of " + std::to_string(job.size()) + "; joined: " + here;
    for (const std::string& refusal : job.refusals) text += "; refused: " + refusal;
    return refuse_all(job, text), false;
  }
  if (job.state == Job::kProving && job.ready_deadline <= now) {
    std::string who;
    for (const auto& member : job.members) {
      if (!member->ready) who += (who.empty() ? "" : ", ") + member->text();
    }
    return refuse_all(job, "job '" + job.plan.name + "' cannot start: no proof of the data path within " +
                               spell_time(config_.ready_timeout) + " from " + who),
           false;
  }
  if (job.state == Job::kRunning) {
    for (const auto& member : job.members) {
      if (member->left || member->heard + config_.keepalive > now) continue;
      refuse(member->conn, connections_.at(member->conn),
             "nothing was heard from this rank for " + spell_time(now - member->heard));
      return on_end(job, member->rank, "nothing was heard from it for " + spell_time(now - member->heard), nullptr, now),
             false;
    }
  }
  return true;
}

void Membership::keep_alive(Job& job, TimeNs now) {
  job.next_keepalive = now + config_.keepalive / 3;
  send_others(job, UINT32_MAX, control::KeepAlive{});
}

// The sign of life for ranks that wait for the start.
void Membership::say_waiting(Job& job, TimeNs now) {
  job.next_waiting = now + control::kWaitingEvery;
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < job.size(); ++rank) {
    const auto& member = job.members[rank];
    if (!member || (job.state != Job::kJoining && !member->ready)) ranks.push_back(rank);
  }
  const std::string whom = name_ranks(ranks) + " of " + std::to_string(job.size());
  send_others(job, UINT32_MAX, control::Waiting{job.state == Job::kJoining ? whom : "the data path of " + whom});
}

std::vector<Membership::JobState> Membership::job_states() const {
  std::vector<JobState> states;
  for (const auto& [handle, job] : jobs_) {
    const auto named = names_.find(job->plan.name);
    const bool replaced = named != names_.end() && named->second != handle;
    const auto same = [&](const JobState& state) { return state.name == job->plan.name; };
    if (replaced || std::any_of(states.begin(), states.end(), same)) continue;
    states.push_back({.job = handle,
                      .name = job->plan.name,
                      .ranks = job->size(),
                      .joined = job->joined(),
                      .running = job->state == Job::kRunning,
                      .stalls = job->stalls,
                      .failovers = job->failovers()});
  }
  return states;
}

TimeNs Membership::poll_timer() const {
  TimeNs next = kNever;
  for (const auto& [id, connection] : connections_) next = std::min(next, connection.close_at);
  for (const auto& [handle, job] : jobs_) {
    next = std::min({next, job->next_keepalive, job->next_waiting});
    if (job->state == Job::kProving) next = std::min(next, job->ready_deadline);
    for (const auto& member : job->members) {
      if (member && job->state == Job::kJoining) next = std::min(next, member->join_deadline);
      if (member && job->state == Job::kRunning && !member->left) next = std::min(next, member->heard + config_.keepalive);
    }
    for (const Query& query : job->queries) next = std::min(next, query.deadline);
    if (!job->collections.empty()) next = std::min(next, job->collections.front().deadline);
  }
  return next;
}

}  // namespace gatun
