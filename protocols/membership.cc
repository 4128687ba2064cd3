#include "protocols/membership.h"

#include <algorithm>
#include <bit>

#include "protocols/aggregator.h"
#include "protocols/membership_state.h"
#include "protocols/worker.h"

namespace gatun {
namespace {

using control::Join;

constexpr uint32_t kIndexBits = 10;
static_assert(kJobsMax == 1u << kIndexBits && kRanksMax == kChildrenMax);

// A handle may come back after this many others with its index: far more than old packets live, as an index also rests in
// the queue of free ones.
constexpr size_t kPastHandles = 16;
constexpr size_t kRefusalsKept = 4;
constexpr uint32_t kPayloadBytesMax = 1 << 20;

std::string quoted(const std::string& text) {
  return "'" + text + "'";
}
std::string setting_text(uint32_t value) {
  return value == 0 ? "auto" : std::to_string(value);
}

struct Agreement {
  const char* setting;
  std::string (*text)(const Join&);
};
constexpr Agreement kAgreements[] = {
    {"trees", [](const Join& j) { return setting_text(j.trees); }},
    {"window", [](const Join& j) { return setting_text(j.window); }},
    {"payload", [](const Join& j) { return setting_text(j.payload_bytes); }},
    {"transport", [](const Join& j) { return std::string(control::name(j.transport)); }},
    {"fallback", [](const Join& j) { return std::string(control::name(j.fallback)); }},
};

}  // namespace

Membership::Membership(Config config) : config_(std::move(config)) {
  GATUN_CHECK(config_.random);
  for (uint32_t index = 0; index < kJobsMax; ++index) free_indices_.push_back(index);
}

Membership::~Membership() = default;

void Membership::on_open(ConnId conn, const std::string& peer_address, TimeNs now) {
  Connection& connection = connections_[conn];
  connection = Connection{.peer = peer_address, .close_at = now + config_.hello_timeout};
  if (connections_.size() > config_.connections_max) {
    refuse(conn, connection,
           "the switch already has its maximum of " + std::to_string(config_.connections_max) + " connections");
  }
}

void Membership::on_message(ConnId conn, const control::Message& message, TimeNs now) {
  auto found = connections_.find(conn);
  if (found == connections_.end() || found->second.state == Connection::kDone) return;
  Connection& connection = found->second;
  const Join* join = std::get_if<Join>(&message);
  if (connection.state == Connection::kHello) {
    if (join) return on_join(conn, connection, *join, now);
    return refuse(conn, connection, std::string("sent ") + control::name(message) + " before it had joined");
  }
  const uint32_t rank = connection.rank;
  Job& job = *jobs_.at(connection.job);
  Member& member = *job.members[rank];
  member.heard = now;
  if (std::holds_alternative<control::Ready>(message)) return on_ready(job, member, now);
  if (std::holds_alternative<control::Leave>(message)) return leave(job, rank, now);
  if (auto* abort = std::get_if<control::Abort>(&message)) return on_end(job, rank, abort->text, abort, now);
  if (auto* attach = std::get_if<control::Attach>(&message)) return on_attach(job, member, *attach);
  if (auto* report = std::get_if<control::Report>(&message)) return on_report(job, member, *report, now);
  if (auto* stalled = std::get_if<control::Stalled>(&message)) return on_stalled(job, member, *stalled, now);
  if (auto* alive = std::get_if<control::KeepAlive>(&message)) {
    member.started = alive->started;
    member.finished = alive->finished;
    if (alive->ask) sends_.emplace_back(conn, control::KeepAlive{});
    std::erase_if(job.queries, [&](const Query& query) { return answer_query(job, query, now); });
    return;
  }
  on_malformed(conn, std::string("sent ") + control::name(message) + (join ? " twice" : ", which only a switch sends"), now);
}

void Membership::on_malformed(ConnId conn, const std::string& why, TimeNs now) {
  auto found = connections_.find(conn);
  if (found == connections_.end() || found->second.state == Connection::kDone) return;
  Connection& connection = found->second;
  const bool member = connection.state == Connection::kMember;
  const uint32_t handle = connection.job, rank = connection.rank;
  refuse(conn, connection, "the peer at " + connection.peer + " " + why);
  if (!member) return;
  Job& job = *jobs_.at(handle);
  if (job.state == Job::kJoining) return drop_joining(job, rank, now);
  on_end(job, rank, "it " + why, nullptr, now);
}

void Membership::on_close(ConnId conn, const std::string& why, TimeNs now) {
  auto found = connections_.find(conn);
  if (found == connections_.end()) return;
  const Connection connection = found->second;
  connections_.erase(found);
  if (connection.state != Connection::kMember) return;
  Job& job = *jobs_.at(connection.job);
  if (job.state == Job::kJoining) return drop_joining(job, connection.rank, now);
  on_end(job, connection.rank, "its connection closed without leave" + (why.empty() ? "" : " (" + why + ")"), nullptr, now);
}

void Membership::on_join(ConnId id, Connection& connection, const Join& join, TimeNs now) {
  std::string error = check_join(join);
  auto named = names_.find(join.job);
  Job* job = named == names_.end() ? nullptr : jobs_.at(named->second).get();
  if (error.empty() && job && job->state != Job::kJoining) {
    error = "job name " + quoted(join.job) + " is in use by a running job of " + std::to_string(job->size()) +
            " ranks, among them " + job->members[0]->text() + "; wait for its end or set another job name";
  }
  if (error.empty() && job) {
    std::string contradiction = check_agreement(*job, join);
    if (!contradiction.empty()) {
      // A job whose ranks contradict each other cannot form: all learn it now instead of at the deadline.
      refuse(id, connection, contradiction);
      return refuse_all(*job, contradiction);
    }
    if (join.rank < job->size() && job->members[join.rank]) {
      error = "rank " + std::to_string(join.rank) + " of job " + quoted(join.job) + " is already taken by " +
              job->members[join.rank]->text() + "; give each process its own rank, or set another job name";
    }
  }
  if (error.empty() && !job && free_indices_.empty()) {
    error = "the switch already has " + std::to_string(kJobsMax) + " jobs that run or wait for their ranks";
  }
  if (!error.empty()) {
    if (job && job->state == Job::kJoining) {
      job->refusals.push_back(join.host + ": " + error);
      if (job->refusals.size() > kRefusalsKept) job->refusals.pop_front();
    }
    return refuse(id, connection, error);
  }
  if (!job) job = make_job(join, now);
  const TimeNs asked = join.join_timeout_ms == 0 ? kNever : join.join_timeout_ms * kMs;
  const TimeNs patience = std::min(asked, config_.join_timeout_max);
  job->members[join.rank] = Member{
      .conn = id, .rank = join.rank, .join = join, .patience = patience, .join_deadline = now + patience, .heard = now};
  connection.state = Connection::kMember;
  connection.job = job->plan.job;
  connection.rank = join.rank;
  connection.close_at = kNever;
  job->next_waiting = now + control::kWaitingEvery;
  if (job->joined() == job->size()) return plan(*job);
  say_waiting(*job, now);
}

// What is wrong with this message whatever the other ranks say; "" if nothing.
std::string Membership::check_join(const Join& join) const {
  if (join.job.empty()) return "the job name is empty; set a job name";
  if (join.size == 0) return "a job of 0 ranks cannot run; the size must be at least 1";
  if (join.size > kRanksMax) {
    return "rank " + std::to_string(join.rank) + " of " + std::to_string(join.size) +
           " is refused: this switch takes at most " + std::to_string(kRanksMax) + " ranks per job";
  }
  if (join.rank >= join.size) {
    return "rank " + std::to_string(join.rank) + " is out of range: a job of " + std::to_string(join.size) +
           " ranks has ranks 0 to " + std::to_string(join.size - 1);
  }
  if (join.trees < 1 || join.trees > std::min(config_.trees_max, kTreesMax)) {
    return "setting trees is " + std::to_string(join.trees) + "; this switch takes 1 to " +
           std::to_string(std::min(config_.trees_max, kTreesMax));
  }
  if (join.window != 0 && (!std::has_single_bit(join.window) || join.window < 2 || join.window > kWindowMax)) {
    return "setting window is " + std::to_string(join.window) + "; it must be a power of two from 2 to " +
           std::to_string(kWindowMax);
  }
  if (join.payload_bytes % 64 != 0 || join.payload_bytes > kPayloadBytesMax) {
    return "setting payload is " + std::to_string(join.payload_bytes) + "; it must be a multiple of 64 up to " +
           std::to_string(kPayloadBytesMax);
  }
  const bool shares_memory = !config_.facts.host_identity.empty() && join.host_identity == config_.facts.host_identity;
  if (join.transport == control::TransportChoice::kShm && !shares_memory) {
    return "setting transport is shm, but host " + join.host + " shares no memory with the switch; use auto or udp";
  }
  const bool verbs = join.transport == control::TransportChoice::kVerbs;
  if (verbs && !config_.facts.verbs) {
    return "setting transport is verbs, but the switch has no RDMA: " + config_.facts.why_no_verbs;
  }
  if (!verbs && !shares_memory && config_.facts.udp_payload_bytes == 0 && config_.facts.verbs) {
    return "this switch serves " + join.host + " by RDMA only; set transport to verbs";
  }
  if (!verbs && config_.facts.udp_payload_bytes == 0 && !shares_memory) {
    return "this switch serves its own host by shm only, and " + join.host + " shares no memory with it";
  }
  return {};
}

// How this message contradicts the ranks that are here; "" if it does not.
std::string Membership::check_agreement(const Job& job, const Join& join) const {
  const Member newcomer{.rank = join.rank, .join = join};
  for (const auto& member : job.members) {
    if (!member) continue;
    if (member->join.size != join.size) {
      return "job " + quoted(join.job) + ": " + newcomer.text() + " says " + std::to_string(join.size) + " ranks, " +
             member->text() + " says " + std::to_string(member->join.size) + "; start all ranks with the same size";
    }
    for (const Agreement& agreement : kAgreements) {
      const std::string theirs = agreement.text(member->join), ours = agreement.text(join);
      if (theirs == ours) continue;
      return "job " + quoted(join.job) + ": setting " + agreement.setting + " differs: " + member->text() + " has " +
             theirs + ", " + newcomer.text() + " has " + ours + "; give all ranks the same";
    }
    break;  // all ranks that are here agree with each other
  }
  return {};
}

Membership::Job* Membership::make_job(const Join& join, TimeNs now) {
  const uint32_t index = free_indices_.front();
  free_indices_.pop_front();
  auto job = std::make_unique<Job>();
  job->plan.job = make_handle(index);
  job->plan.token = config_.random();
  job->plan.name = join.job;
  job->plan.ranks = join.size;
  job->members.resize(join.size);
  job->next_keepalive = now + config_.keepalive / 3;
  // Any first chunk number is right; a random one keeps packets of an earlier job further away.
  job->first_seq = config_.first_seq >= 0 ? static_cast<uint64_t>(config_.first_seq) : config_.random() & 0xffffffffu;
  names_[join.job] = job->plan.job;
  return (jobs_[job->plan.job] = std::move(job)).get();
}

uint32_t Membership::make_handle(uint32_t index) {
  std::deque<uint32_t>& past = past_[index];
  uint32_t epoch = static_cast<uint32_t>(config_.random() >> (32 + kIndexBits));
  while (epoch == 0 || std::find(past.begin(), past.end(), epoch) != past.end())
    epoch = (epoch + 1) & ((1u << (32 - kIndexBits)) - 1);
  past.push_back(epoch);
  if (past.size() > kPastHandles) past.pop_front();
  return epoch << kIndexBits | index;
}

// All ranks are here: compute what they share and ask the switch for room.
void Membership::plan(Job& job) {
  std::vector<Join> joins;
  std::vector<bool> linked;
  for (const auto& member : job.members) {
    joins.push_back(member->join);
    const bool shares_memory =
        !config_.facts.host_identity.empty() && member->join.host_identity == config_.facts.host_identity;
    const control::TransportChoice choice = member->join.transport;
    job.plan.verbs.push_back(choice == control::TransportChoice::kVerbs);
    job.plan.shm.push_back(shares_memory && !job.plan.verbs.back() && choice != control::TransportChoice::kUdp);
    linked.push_back(job.plan.linked(member->rank));
  }
  // Before anything can be refused: without the switch the ranks go on among themselves.
  control::Peers peers;
  for (const Join& join : joins) peers.cards.push_back(join.card);
  if (std::none_of(peers.cards.begin(), peers.cards.end(), [](const std::string& card) { return card.empty(); })) {
    for (const auto& member : job.members) sends_.emplace_back(member->conn, peers);
  }
  const Result<Sizing> sizing = size_job(config_.facts, joins, linked);
  if (!sizing.ok()) return refuse_all(job, "job " + quoted(job.plan.name) + ": " + sizing.status().message());
  job.state = Job::kAdmitting;
  job.plan.trees = joins[0].trees;
  job.plan.window = sizing.value().window;
  job.plan.payload_bytes = sizing.value().payload_bytes;
  actions_.push_back(Action{.kind = Action::kAdmit, .job = job.plan.job, .plan = job.plan});
}

void Membership::on_admitted(uint32_t handle, const Admission& admission, TimeNs now) {
  auto found = jobs_.find(handle);
  if (found == jobs_.end() || found->second->state != Job::kAdmitting) return;  // a rank was lost meanwhile
  Job& job = *found->second;
  if (!admission.status.ok()) {
    return refuse_all(job, "job " + quoted(job.plan.name) + " is not admitted: " + admission.status.message());
  }
  GATUN_CHECK(admission.trees.size() == job.plan.trees);
  GATUN_CHECK(admission.window <= job.plan.window && admission.payload_bytes <= job.plan.payload_bytes);
  if (admission.window != 0) job.plan.window = admission.window;
  if (admission.payload_bytes != 0) job.plan.payload_bytes = admission.payload_bytes;
  job.state = Job::kProving;
  job.ready_deadline = now + config_.ready_timeout;
  control::Admit admit{.job = handle,
                       .token = job.plan.token,
                       .window = job.plan.window,
                       .payload_bytes = job.plan.payload_bytes,
                       .first_seq = job.first_seq,
                       .first_op = config_.first_op,
                       .keepalive_ms = static_cast<uint32_t>(config_.keepalive / kMs)};
  for (const auto& member : job.members) {
    const bool shm = job.plan.shm[member->rank];
    admit.transport = shm                             ? control::TransportChoice::kShm
                      : job.plan.linked(member->rank) ? control::TransportChoice::kVerbs
                                                      : control::TransportChoice::kUdp;
    admit.shm_socket = shm ? admission.shm_socket : "";
    admit.data_ip = shm ? "" : admission.data_ip;
    admit.trees.clear();
    for (const Admission::Tree& tree : admission.trees) {
      admit.trees.push_back({.port = tree.port, .lane = tree.lane, .child = static_cast<uint8_t>(member->rank)});
    }
    sends_.emplace_back(member->conn, admit);
  }
}

void Membership::on_attach(Job& job, Member& member, const control::Attach& attach) {
  if (job.state != Job::kProving) return;
  actions_.push_back(Action{.kind = Action::kAttach, .job = job.plan.job, .rank = member.rank, .attach = attach});
}

void Membership::on_attached(uint32_t handle, uint32_t rank, uint8_t lane, const Result<std::string>& card, TimeNs now) {
  auto found = jobs_.find(handle);
  if (found == jobs_.end() || found->second->state != Job::kProving) return;  // a rank was lost meanwhile
  Job& job = *found->second;
  const Member& member = *job.members.at(rank);
  if (card.ok()) return sends_.emplace_back(member.conn, control::Attach{lane, card.value()}), void();
  const std::string why = card.status().message();
  refuse(member.conn, connections_.at(member.conn), why);
  on_end(job, rank, why, nullptr, now);
}

void Membership::on_ready(Job& job, Member& member, TimeNs now) {
  if (job.state != Job::kProving) return;
  member.ready = true;
  if (!std::all_of(job.members.begin(), job.members.end(), [](const auto& m) { return m->ready; })) return;
  job.state = Job::kRunning;
  job.next_waiting = kNever;
  for (auto& m : job.members) {
    m->heard = now;
    sends_.emplace_back(m->conn, control::Start{});
  }
  const auto shm_ranks = std::count(job.plan.shm.begin(), job.plan.shm.end(), true);
  const auto verbs_ranks = std::count(job.plan.verbs.begin(), job.plan.verbs.end(), true);
  log("job " + quoted(job.plan.name) + " runs: " + std::to_string(job.size()) + (job.size() == 1 ? " rank (" : " ranks (") +
      std::to_string(shm_ranks) + " by shm, " + std::to_string(verbs_ranks) + " by verbs), " +
      std::to_string(job.plan.trees) + (job.plan.trees == 1 ? " tree" : " trees") + ", window " +
      std::to_string(job.plan.window) + ", payload " + std::to_string(job.plan.payload_bytes) + " bytes");
}

// A rank is gone or gives up: the others learn it now and the job is over.
void Membership::on_end(Job& job, uint32_t rank, const std::string& why, const control::Abort* aborted, TimeNs now) {
  if (job.state == Job::kJoining) return leave(job, rank, now);
  const std::string who = job.members[rank]->text();
  const char* end = !aborted ? " is lost: " : aborted->timed_out ? " gave up: " : " aborted the job: ";
  const std::string text = who + end + (why.empty() ? "no reason given" : why);
  log("job " + quoted(job.plan.name) + ": " + text);
  if (aborted) {
    send_others(job, rank, control::Abort{rank, text, aborted->timed_out});
  } else {
    send_others(job, rank, control::Lost{rank, text});
  }
  end_job(job.plan.job, now);
}

void Membership::leave(Job& job, uint32_t rank, TimeNs now) {
  Member& member = *job.members[rank];
  Connection& connection = connections_.at(member.conn);
  if (job.state == Job::kAdmitting || job.state == Job::kProving)
    return on_end(job, rank, "it left before the job had started", nullptr, now);
  connection.state = Connection::kDone;
  connection.close_at = now + config_.linger;
  if (job.state == Job::kJoining) return drop_joining(job, rank, now);
  member.left = true;
  free_name(job);
  if (std::all_of(job.members.begin(), job.members.end(), [](const auto& m) { return m->left; })) {
    log("job " + quoted(job.plan.name) + " has ended");
    return end_job(job.plan.job, now);
  }
  send_others(job, rank,
              control::Left{rank, member.text() + " left the job; operations that need it cannot complete", member.started});
  std::erase_if(job.queries, [&](const Query& query) { return query.rank == rank || answer_query(job, query, now); });
}

// A rank that has not been admitted goes away: the others are told and keep waiting, it may come again.
void Membership::drop_joining(Job& job, uint32_t rank, TimeNs now) {
  log("job " + quoted(job.plan.name) + ": " + job.members[rank]->text() + " went away while the job was joining");
  job.members[rank].reset();
  if (job.joined() == 0) return end_job(job.plan.job, now);
  say_waiting(job, now);
}

// From when its first rank has left, no operation of all ranks can begin: the others are on their way out, and the first may
// be back already to form the next job of this name.
void Membership::free_name(const Job& job) {
  const auto named = names_.find(job.plan.name);
  if (named != names_.end() && named->second == job.plan.job) names_.erase(named);
}

// The job is over for whoever is still in it. Its name is free at once, its handle is not.
void Membership::end_job(uint32_t handle, TimeNs now) {
  auto found = jobs_.find(handle);
  Job& job = *found->second;
  for (const auto& member : job.members) {
    if (!member || member->left) continue;
    auto connection = connections_.find(member->conn);
    if (connection == connections_.end() || connection->second.state != Connection::kMember) continue;
    connection->second.state = Connection::kDone;
    connection->second.close_at = now + config_.linger;
  }
  if (job.state != Job::kJoining) actions_.push_back(Action{.kind = Action::kRemove, .job = handle});
  free_name(job);
  free_indices_.push_back(handle & (kJobsMax - 1));
  jobs_.erase(found);
}

void Membership::refuse(ConnId id, Connection& connection, const std::string& text) {
  ++refusals_;
  sends_.emplace_back(id, control::Refused{text});
  closes_.push_back(id);
  connection.state = Connection::kDone;
  connection.close_at = kNever;
  log("refused " + connection.peer + ": " + text);
}

void Membership::refuse_all(Job& job, const std::string& text) {
  for (const auto& member : job.members) {
    if (!member) continue;
    auto connection = connections_.find(member->conn);
    if (connection != connections_.end() && connection->second.state == Connection::kMember)
      refuse(member->conn, connection->second, text);
  }
  end_job(job.plan.job, 0);  // nobody lingers: all connections are being closed
}

void Membership::send_others(const Job& job, uint32_t except, const control::Message& message) {
  for (const auto& member : job.members) {
    if (member && member->rank != except && !member->left) sends_.emplace_back(member->conn, message);
  }
}

void Membership::on_stop(const std::string& text, TimeNs now) {
  while (!jobs_.empty()) {
    Job& job = *jobs_.begin()->second;
    send_others(job, UINT32_MAX, control::Closing{text});
    end_job(job.plan.job, now);
  }
  for (auto& [id, connection] : connections_) {
    if (connection.close_at == kNever && connection.state == Connection::kDone) continue;  // already in closes_
    connection.state = Connection::kDone;
    connection.close_at = kNever;
    closes_.push_back(id);
  }
}

bool Membership::poll_send(ConnId* conn, control::Message* message) {
  if (sends_.empty()) return false;
  *conn = sends_.front().first;
  *message = std::move(sends_.front().second);
  sends_.pop_front();
  return true;
}

bool Membership::poll_action(Action* action) {
  if (actions_.empty()) return false;
  *action = std::move(actions_.front());
  actions_.pop_front();
  return true;
}

bool Membership::poll_close(ConnId* conn) {
  while (!closes_.empty()) {
    *conn = closes_.front();
    closes_.pop_front();
    if (connections_.erase(*conn) != 0) return true;
  }
  return false;
}

bool Membership::poll_log(std::string* line) {
  if (logs_.empty()) return false;
  *line = std::move(logs_.front());
  logs_.pop_front();
  return true;
}

}  // namespace gatun
