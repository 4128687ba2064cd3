// Membership: the controller's side of all jobs. It decides who may join, when a job starts, who is lost, and what the
// others are told. Pure: connections are numbers, time is an argument, randomness is passed in; the daemon does what it
// says.
//
//   joining -> admitting -> proving -> running -> gone
//
// Events: on_open, on_message, on_malformed, on_close, on_admitted, on_stop, on_timer. After each, take what poll_send(),
// poll_action() and poll_close() give until they are empty; call on_timer() when poll_timer() has passed.
// A rank belongs to one connection for its whole life; a job whose rank is lost ends for all, and its name is free at once.
// Memory is bounded by the configuration. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocols/control.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

using ConnId = uint32_t;

inline constexpr uint32_t kRanksMax = 64;   // of a job at one switch: Aggregator's kChildrenMax
inline constexpr uint32_t kJobsMax = 1024;  // the handle's low 10 bits

// What the members of a job agreed on; the switch is set up by it.
struct JobPlan {
  uint32_t job = 0;  // handle: 22 random bits (the epoch), 10 bits of index
  uint64_t token = 0;
  std::string name;
  uint32_t ranks = 0;
  uint32_t trees = 0;
  uint32_t window = 0;
  uint32_t payload_bytes = 0;
  std::vector<bool> shm;    // per rank: shares memory with the switch
  std::vector<bool> verbs;  // per rank: by RDMA; empty: none

  // Has memory for its contributions at the switch; else they come in packets.
  bool linked(uint32_t rank) const { return shm[rank] || (!verbs.empty() && verbs[rank]); }
};

// What the switch answers to a plan.
struct Admission {
  Status status;  // not ok: the sentence goes to all ranks
  struct Tree {
    uint16_t port = 0;
    uint8_t lane = 0;
  };
  uint32_t window = 0;         // what was given, at most the plan's; 0 = that
  uint32_t payload_bytes = 0;  // the same
  std::vector<Tree> trees;
  std::string shm_socket;
  std::string data_ip;  // "": the controller's
};

// Facts of the switch that plans are computed from.
struct SwitchFacts {
  std::string host_identity;       // ranks with the same one can use shm; "" = no shm here
  uint32_t udp_payload_bytes = 0;  // most payload of one UDP packet; 0 = no udp here
  uint32_t udp_receive_bytes = 0;  // receive buffer of one lane as its transport states it; 0 = no limit
  uint32_t udp_buffers = 0;        // packets that one lane can hold unreleased; 0 = no limit
  uint32_t lanes = 1;
  bool verbs = false;        // RDMA is there
  std::string why_no_verbs;  // else
};

class Membership {
 public:
  struct Config {
    SwitchFacts facts;
    uint32_t connections_max = 4096;
    uint32_t trees_max = 16;                   // of one job
    TimeNs join_timeout_max = 3600 * kSecond;  // ranks give their own; this bounds it
    TimeNs ready_timeout = 30 * kSecond;       // from admission to the last Ready
    TimeNs hello_timeout = 10 * kSecond;       // a connection that has not joined by then is closed
    TimeNs keepalive = 30 * kSecond;
    TimeNs report_wait = 1 * kSecond;  // for the ranks' contracts after the first report
    TimeNs stall_wait = 200 * kMs;     // for the answers of the ranks that a Stalled names
    TimeNs linger = 5 * kSecond;       // a rank of a finished job may stay connected this long
    int64_t first_seq = -1;            // -1: random; tests start near the wrap
    uint32_t first_op = 0;
    std::function<uint64_t()> random;  // must be unguessable in production
  };

  struct Action {
    enum Kind : uint8_t { kAdmit, kRemove, kAttach } kind = kAdmit;
    uint32_t job = 0;
    JobPlan plan;       // kAdmit
    uint32_t rank = 0;  // kAttach, and what it says
    control::Attach attach;
  };

  explicit Membership(Config config);
  ~Membership();

  // Events. A connection number may be used again after on_close() or after poll_close() gave it.
  void on_open(ConnId conn, const std::string& peer_address, TimeNs now);
  void on_message(ConnId conn, const control::Message& message, TimeNs now);
  void on_malformed(ConnId conn, const std::string& why, TimeNs now);  // the parser's error
  void on_close(ConnId conn, const std::string& why, TimeNs now);      // "" = orderly end of the stream
  void on_admitted(uint32_t job, const Admission& admission, TimeNs now);
  // card: of the switch's end; an error: the rank cannot be served.
  void on_attached(uint32_t job, uint32_t rank, uint8_t lane, const Result<std::string>& card, TimeNs now);
  void on_timer(TimeNs now);
  void on_stop(const std::string& text, TimeNs now);  // tells all jobs; everything is closed by poll_close()

  // Decisions.
  bool poll_send(ConnId* conn, control::Message* message);
  bool poll_action(Action* action);  // kAdmit wants on_admitted(), kAttach on_attached()
  bool poll_close(ConnId* conn);     // close after what was sent
  bool poll_log(std::string* line);  // what an operator wants to know: joined, started, lost, refused
  TimeNs poll_timer() const;

  // Getters.
  bool alive(uint32_t job) const { return jobs_.count(job) != 0; }
  uint32_t jobs() const { return static_cast<uint32_t>(jobs_.size()); }
  uint32_t connections() const { return static_cast<uint32_t>(connections_.size()); }
  uint64_t refusals() const { return refusals_; }
  struct JobState {
    uint32_t job = 0;  // handle
    std::string name;
    uint32_t ranks = 0, joined = 0;
    bool running = false;
    uint64_t stalls = 0;     // times that a rank asked why an operation waits
    uint32_t failovers = 0;  // times that it has gone on without a switch, before it came here
  };
  std::vector<JobState> job_states() const;  // one of each name: a job that ranks have left may have a successor

 private:
  struct Connection;
  struct Member;
  struct Collection;
  struct Query;
  struct Job;

  // membership.cc: joining, admission, end of a job.
  void on_join(ConnId id, Connection& connection, const control::Join& join, TimeNs now);
  std::string check_join(const control::Join& join) const;
  std::string check_agreement(const Job& job, const control::Join& join) const;
  Job* make_job(const control::Join& join, TimeNs now);
  uint32_t make_handle(uint32_t index);
  void plan(Job& job);
  void on_attach(Job& job, Member& member, const control::Attach& attach);
  void on_ready(Job& job, Member& member, TimeNs now);
  void on_end(Job& job, uint32_t rank, const std::string& why, const control::Abort* aborted, TimeNs now);
  void leave(Job& job, uint32_t rank, TimeNs now);
  void drop_joining(Job& job, uint32_t rank, TimeNs now);
  void free_name(const Job& job);
  void end_job(uint32_t handle, TimeNs now);
  void refuse(ConnId id, Connection& connection, const std::string& text);
  void refuse_all(Job& job, const std::string& text);
  void say_waiting(Job& job, TimeNs now);
  void send_others(const Job& job, uint32_t except, const control::Message& message);
  void log(std::string line) { logs_.push_back(std::move(line)); }

  // membership_running.cc: what a running job asks, and the clock.
  void on_report(Job& job, Member& member, const control::Report& report, TimeNs now);
  void answer_reports(Job& job, const Collection& collection);
  void on_stalled(Job& job, Member& member, const control::Stalled& stalled, TimeNs now);
  bool answer_query(Job& job, const Query& query, TimeNs now);
  void check_connections(TimeNs now);
  bool check_deadlines(Job& job, TimeNs now);  // false: the job has ended
  void keep_alive(Job& job, TimeNs now);

  Config config_;
  std::map<ConnId, Connection> connections_;
  std::map<uint32_t, std::unique_ptr<Job>> jobs_;  // by handle
  std::map<std::string, uint32_t> names_;          // to handles; the jobs in jobs_ that no rank has left
  std::deque<uint32_t> free_indices_;              // first in, first out: an index rests as long as possible
  std::map<uint32_t, std::deque<uint32_t>> past_;  // per index: its last epochs, which are not drawn again
  std::deque<std::pair<ConnId, control::Message>> sends_;
  std::deque<Action> actions_;
  std::deque<ConnId> closes_;
  std::deque<std::string> logs_;
  uint64_t refusals_ = 0;
};

// Payload and window of a job from what its members and the switch can carry (see the comment at its definition).
struct Sizing {
  uint32_t window = 0;
  uint32_t payload_bytes = 0;
};
Result<Sizing> size_job(const SwitchFacts& facts, const std::vector<control::Join>& members,
                        const std::vector<bool>& linked);

}  // namespace gatun
