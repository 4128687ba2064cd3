// What Membership keeps of connections, ranks and jobs. Private to membership*.cc.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocols/membership.h"

namespace gatun {

struct Membership::Connection {
  enum State : uint8_t { kHello, kMember, kDone };  // kDone: nothing it says counts; closed at close_at
  std::string peer;
  State state = kHello;
  uint32_t job = 0;
  uint32_t rank = 0;
  TimeNs close_at = kNever;
};

struct Membership::Member {
  ConnId conn = 0;
  uint32_t rank = 0;
  control::Join join;
  TimeNs patience = 0;  // it gives up joining after this long
  TimeNs join_deadline = 0;
  TimeNs heard = 0;  // last sign of life
  bool ready = false;
  bool left = false;  // in order; conn is no longer ours
  uint32_t started = 0, finished = 0;

  // "rank 2 (host b, pid 77)"
  std::string text() const {
    return "rank " + std::to_string(rank) + " (" + (join.host.empty() ? "unknown host" : join.host) + ", pid " +
           std::to_string(join.pid) + ")";
  }
};

// The contracts that ranks report for one refused operation.
struct Membership::Collection {
  uint32_t op = 0;
  TimeNs deadline = 0;
  std::map<uint32_t, Contract> contracts;  // by rank
};

// A rank's question why an operation waits, while the ranks it waits for are asked.
struct Membership::Query {
  uint32_t rank = 0;  // who asks
  uint32_t op = 0;
  std::vector<uint16_t> ranks;
  TimeNs asked = 0;
  TimeNs deadline = 0;
};

struct Membership::Job {
  enum State : uint8_t { kJoining, kAdmitting, kProving, kRunning };
  State state = kJoining;
  JobPlan plan;
  uint64_t first_seq = 0;
  std::vector<std::optional<Member>> members;  // by rank
  TimeNs ready_deadline = kNever;
  TimeNs next_keepalive = kNever;
  TimeNs next_waiting = kNever;  // until it runs
  std::deque<Collection> collections;
  std::deque<control::Mismatch> answered;  // the last texts, for ranks that report late
  std::vector<Query> queries;              // at most one per rank
  uint64_t stalls = 0;                     // queries ever
  std::deque<std::string> refusals;        // while joining: who was turned away, for the deadline's text

  uint32_t size() const { return static_cast<uint32_t>(members.size()); }
  uint32_t joined() const {
    uint32_t count = 0;
    for (const auto& member : members) count += member.has_value();
    return count;
  }
  uint32_t failovers() const {
    uint32_t most = 0;
    for (const auto& member : members) {
      if (member) most = std::max(most, member->join.failovers);
    }
    return most;
  }
};

// "0, 2-5, 7" of numbers in rising order.
std::string list_ranks(const std::vector<uint32_t>& ranks);
// "rank 3" or "ranks 0, 2-5".
std::string name_ranks(const std::vector<uint32_t>& ranks);
// "1.5 s", "200 ms".
std::string spell_time(TimeNs duration);

}  // namespace gatun
