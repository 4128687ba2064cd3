// Failover: one job whose ranks outlive its switches: the controller, the mesh between the ranks, and each rank's agreement.
//
// A JobRun serves for every switch epoch and for the ring epoch behind it: its hosts keep the callers' buffers, and the ring
// delivers into them with the checks of every other answer. The reductions use the bytes that stand in the callers' buffers
// when a rank begins its part, so an input that was overwritten too early is a wrong sum.
//
// Ends when all ranks have made all calls, or one has died and all others have an error that names it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "protocols/path.h"
#include "tests/sim/job.h"
#include "tests/sim/network.h"
#include "tests/sim/switch.h"
#include "tests/sim/world.h"

namespace gatun::sim {

class Failover {
 public:
  Failover(World& world, Network& network, std::vector<std::unique_ptr<Switch>>& switches, const JobPlan& plan);

  void begin();
  void on_event(uint32_t index);  // one that this object has pushed
  void on_delivery(uint32_t packet, uint32_t rank);
  void on_host(uint32_t rank);
  void on_crash(uint32_t switch_id);

  bool finished() const { return finished_; }
  std::string progress() const;

 private:
  // A switch epoch and the ring epoch behind it.
  struct Epoch {
    JobPlan plan;
    std::unique_ptr<JobRun> run;
    uint32_t first_ordinal = 0;
    bool known = false;  // first_ordinal and the calls
    bool given_up = false, crashed = false, proven = false;
    uint32_t gone_over = 0;  // ranks
  };
  struct Part {  // one rank's chunks of one operation: handed over, or to be reduced
    std::vector<std::pair<uint64_t, Bytes>> chunks;
    bool arrived = false;
  };
  struct Exchange {  // of one operation at one rank
    bool begun = false;
    std::vector<uint64_t> anew;                      // chunks to be reduced
    std::vector<Part> from;                          // by rank, to be reduced
    std::vector<std::pair<uint64_t, Bytes>> handed;  // by others
    uint64_t handed_by = 0;                          // one bit each
  };
  struct Member {
    std::unique_ptr<PathAgreement> path;
    size_t at = 0;  // epoch
    bool dead = false, failed = false, planned = false, left = false;
    bool sees_end = false;                   // of the rank that died
    size_t ready = 0;                        // epoch that it can go over to; 0: none
    std::map<uint32_t, Exchange> exchanges;  // by ordinal
    uint32_t next_ordinal = 0;               // on the ring
  };
  enum class Kind : uint8_t {
    kProbe,
    kStart,
    kNotReady,
    kRemove,
    kReturn,
    kDetect,
    kSuspect,
    kMessage,
    kPart,
    kHanded,
    kEnd,
    kDie
  };
  struct Event {
    Kind kind = Kind::kProbe;
    uint32_t rank = 0, from = 0;
    size_t epoch = 0;
    uint32_t ordinal = 0;
    std::vector<std::byte> message;
    std::vector<std::pair<uint64_t, Bytes>> chunks;
  };

  void at(TimeNs time, Event event);
  TimeNs soon(uint64_t salt, TimeNs most);
  Host& host(uint32_t rank) { return *epochs_[members_[rank].at]->run->host(rank); }
  Epoch& epoch(uint32_t rank) { return *epochs_[members_[rank].at]; }
  uint32_t index_of(uint32_t rank, uint32_t ordinal) { return ordinal - epoch(rank).first_ordinal; }

  void make_epoch();
  void set_first(Epoch& epoch, uint32_t first_ordinal);
  void give_up(size_t epoch);
  void plan_return();
  void on_start(const Event& event);
  void mesh(uint32_t from, uint32_t to, Event event);
  void mesh_all(uint32_t from, const mesh_wire::Message& message);
  void crash_before_use(const Epoch& epoch);
  void on_rank_event(Event& event);
  void suspect(uint32_t rank, const char* why);
  Exchange& exchange(uint32_t rank, uint32_t ordinal);
  void send_part(uint32_t rank, uint32_t ordinal);
  bool reduce(uint32_t rank, uint32_t ordinal);
  void hand_over(uint32_t rank, const RecoveryPlan& plan);
  void step(uint32_t rank);
  bool step_once(uint32_t rank);
  bool recover(uint32_t rank);
  bool waits_in_vain(uint32_t rank);
  void begin_recovery(uint32_t rank);
  bool ring(uint32_t rank);
  bool run_on_ring(uint32_t rank);
  void go_over(uint32_t rank);
  void die(uint32_t rank);
  void on_failed(uint32_t rank);
  void check_finished();

  World& world_;
  Network& network_;
  std::vector<std::unique_ptr<Switch>>& switches_;
  const JobPlan& plan_;
  std::vector<std::unique_ptr<Epoch>> epochs_;
  std::vector<Member> members_;
  std::vector<Event> events_;
  std::vector<TimeNs> mesh_busy_;     // by from and to
  std::vector<uint64_t> suspicions_;  // as many runs of its hosts after the beginning
  uint64_t draws_ = 0, messages_ = 0, runs_ = 0;
  uint32_t returns_ = 0;
  bool finished_ = false;
  uint32_t died_ = kRanksMax;
};

}  // namespace gatun::sim
