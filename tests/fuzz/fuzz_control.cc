// Any bytes on any connections, any order of opening, closing, time and admissions, into the control parser and Membership.
//
// Checked: what the parser gives can be encoded and parsed again; jobs and connections stay within their limits; every
// admitted job is removed exactly once; a timer that has passed is not asked for again; nothing is said to a connection
// that was closed; and a stop ends everything.

#include <algorithm>
#include <map>
#include <set>

#include "protocols/control.h"
#include "protocols/membership.h"
#include "protocols/status.h"
#include "tests/fuzz/fuzz.h"

namespace gatun::fuzz {
namespace {

enum Step : uint8_t { kOpen, kFeed, kClose, kTime, kAdmitted, kNotAdmitted, kSteps };

constexpr uint32_t kConnections = 8;

class Harness {
 public:
  Harness() : machine_(config()) {}

  void step(Input& input) {
    const ConnId conn = input.below(kConnections);
    switch (input.below(kSteps)) {
      case kOpen:
        if (parsers_.count(conn)) break;
        parsers_[conn];
        machine_.on_open(conn, "peer", now_);
        break;
      case kFeed: feed(conn, input); break;
      case kClose:
        if (parsers_.erase(conn)) machine_.on_close(conn, "", now_);
        break;
      case kTime:
        now_ += TimeNs{input.u8()} * 100 * kMs;
        machine_.on_timer(now_);
        GATUN_CHECK(machine_.poll_timer() > now_);
        break;
      case kAdmitted: answer(input, Status()); break;
      case kNotAdmitted: answer(input, Status(Code::kRefused, "full")); break;
    }
    pump();
  }

  void finish() {
    machine_.on_stop("stop", now_);
    pump();
    GATUN_CHECK(machine_.jobs() == 0);
    GATUN_CHECK(machine_.connections() == 0);
    GATUN_CHECK(admitted_.empty());
    GATUN_CHECK(parsers_.empty());
  }

 private:
  static Membership::Config config() {
    Membership::Config config;
    config.facts = {.host_identity = "h", .udp_payload_bytes = 65472, .udp_receive_bytes = 1 << 20};
    config.connections_max = kConnections - 1;
    config.keepalive = 3 * kSecond;
    config.random = [state = uint64_t{1}]() mutable { return state = state * 6364136223846793005u + 1442695040888963407u; };
    return config;
  }

  void feed(ConnId conn, Input& input) {
    std::vector<std::byte> bytes(std::min<size_t>(input.u8(), input.left()));
    for (std::byte& byte : bytes) byte = std::byte(input.u8());
    auto found = parsers_.find(conn);
    if (found == parsers_.end()) return;
    control::Parser& parser = found->second;
    parser.push(bytes);
    control::Message message;
    for (;;) {
      const control::Parser::Next next = parser.next(&message);
      if (next == control::Parser::Next::kMore) break;
      if (next == control::Parser::Next::kError) {
        machine_.on_malformed(conn, parser.error(), now_);
        break;
      }
      check_round_trip(message);
      machine_.on_message(conn, message, now_);
    }
    GATUN_CHECK(parser.buffered_bytes() <= control::kFrameBytesMax + 4);
  }

  static void check_round_trip(const control::Message& message) {
    std::vector<std::byte> bytes, again;
    control::encode(message, &bytes);
    control::Parser parser;
    parser.push(bytes);
    control::Message copy;
    GATUN_CHECK(parser.next(&copy) == control::Parser::Next::kMessage);
    control::encode(copy, &again);
    GATUN_CHECK(bytes == again);
  }

  void answer(Input& input, Status status) {
    if (admitted_.empty()) return;
    auto job = std::next(admitted_.begin(), static_cast<std::ptrdiff_t>(input.u8() % admitted_.size()));
    Admission admission;
    admission.status = std::move(status);
    admission.window = 2;
    admission.payload_bytes = 64;
    admission.trees.resize(job->second);
    machine_.on_admitted(job->first, admission, now_);
  }

  void pump() {
    ConnId conn;
    control::Message message;
    while (machine_.poll_send(&conn, &message)) {
      std::vector<std::byte> bytes;
      control::encode(message, &bytes);
      GATUN_CHECK(bytes.size() <= control::kFrameBytesMax + 4);
    }
    Membership::Action action;
    while (machine_.poll_action(&action)) {
      if (action.kind == Membership::Action::kAdmit) {
        GATUN_CHECK(action.plan.ranks >= 1 && action.plan.ranks <= kRanksMax && action.plan.shm.size() == action.plan.ranks);
        GATUN_CHECK(action.plan.window >= 2 && action.plan.payload_bytes >= 64 && action.plan.payload_bytes % 64 == 0);
        GATUN_CHECK(admitted_.emplace(action.job, action.plan.trees).second);
      } else if (action.kind == Membership::Action::kAttach) {
        GATUN_CHECK(admitted_.count(action.job) == 1);
        machine_.on_attached(action.job, action.rank, action.attach.lane, std::string("card"), now_);
      } else {
        GATUN_CHECK(admitted_.erase(action.job) == 1);
      }
    }
    while (machine_.poll_close(&conn)) parsers_.erase(conn);
    std::string line;
    while (machine_.poll_log(&line)) GATUN_CHECK(!line.empty());
    GATUN_CHECK(machine_.jobs() <= machine_.connections());
    GATUN_CHECK(machine_.connections() <= parsers_.size());
  }

  Membership machine_;
  std::map<ConnId, control::Parser> parsers_;  // open connections
  std::map<uint32_t, uint32_t> admitted_;      // handle to trees
  TimeNs now_ = kSecond;
};

void say(Bytes* script, uint8_t conn, const control::Message& message) {
  std::vector<std::byte> frame;
  control::encode(message, &frame);
  script->insert(script->end(), {conn, kFeed, static_cast<uint8_t>(frame.size())});
  for (std::byte byte : frame) script->push_back(std::to_integer<uint8_t>(byte));
}

Bytes started(uint8_t ranks) {
  Bytes script;
  for (uint8_t rank = 0; rank < ranks; ++rank) {
    script.insert(script.end(), {rank, kOpen});
    say(&script, rank,
        control::Join{.job = "j",
                      .rank = rank,
                      .size = ranks,
                      .path_payload_bytes = 1440,
                      .pid = rank,
                      .host = "h",
                      .host_identity = rank % 2 ? "h" : "",
                      .software = "s"});
  }
  script.insert(script.end(), {0, kAdmitted, 0});
  for (uint8_t rank = 0; rank < ranks; ++rank) say(&script, rank, control::Ready{});
  return script;
}

}  // namespace

std::vector<std::pair<std::string, Bytes>> seeds() {
  Bytes leaves = started(2), reports = started(3), stalls = started(3), dies = started(4), aborts = started(1),
        silent = started(2);
  say(&leaves, 0, control::Leave{});
  say(&leaves, 1, control::Leave{});
  for (uint8_t rank = 0; rank < 2; ++rank) say(&reports, rank, control::Report{4, {.count = rank}});
  reports.insert(reports.end(), {0, kTime, 20});
  say(&stalls, 0, control::Stalled{2, {1, 2}, ""});
  say(&stalls, 1, control::KeepAlive{0, 1, 1});
  stalls.insert(stalls.end(), {0, kTime, 3});
  dies.insert(dies.end(), {2, kClose});
  say(&aborts, 0, control::Abort{0, "why"});
  silent.insert(silent.end(), {0, kTime, 31});
  Bytes refused = {0, kOpen};
  say(&refused, 0, control::Join{.job = "j", .rank = 5, .size = 4});
  Bytes version = {0, kOpen, 0, kFeed, 6, 0, 0, 0, 2, 3, 1};
  return {{"leaves", leaves}, {"reports", reports}, {"stalls", stalls},   {"dies", dies},
          {"aborts", aborts}, {"silent", silent},   {"refused", refused}, {"version", version}};
}

}  // namespace gatun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gatun::fuzz::Input input(data, size);
  gatun::fuzz::Harness harness;
  while (!input.empty()) harness.step(input);
  harness.finish();
  return 0;
}
