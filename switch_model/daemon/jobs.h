// Jobs: carries out what Membership decides: gives a job its place in the table, its memory and its trees on the lanes, and
// takes all of it back. Control thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/transport/shm_door.h"
#include "protocols/membership.h"
#include "switch_model/daemon/lane.h"
#include "switch_model/job_table.h"

namespace gatun {

class Jobs {
 public:
  struct Counts {
    uint32_t jobs = 0, trees = 0;
    uint64_t memory_bytes = 0;
    size_t offers = 0;  // shm links that nobody has fetched
  };

  struct Place {
    uint16_t port = 0;    // of lane 0, for UDP
    std::string data_ip;  // "": the controller's
  };
  // door may be null: no shm. devices: those of the lanes' verbs hubs. All outlive this.
  Jobs(const JobTable::Config& config, Place place, ShmDoor* door, const VerbsDevices& devices, std::vector<Lane*> lanes);
  ~Jobs();

  Admission admit(const JobPlan& plan, TimeNs now);
  void remove(uint32_t job);
  // A rank's queue pair to one of the lanes: takes the card of the worker's end, returns that of the switch's.
  Result<std::string> attach(uint32_t job, uint32_t rank, const control::Attach& attach);

  // Leases: alive(job) says whether the controller still knows it. Jobs that it forgot are removed when their lease ends.
  template <typename F>
  void renew(TimeNs now, F alive) {
    for (const auto& [job, served] : served_) {
      if (alive(job)) table_.renew(job, now);
    }
  }
  uint32_t remove_expired(TimeNs now);

  Counts counts() const;
  uint64_t memory_bytes(uint32_t job) const { return table_.memory_bytes(job); }

 private:
  struct Served {
    struct OnLane {
      uint32_t lane = 0;
      ShmShape shape;
      std::shared_ptr<ShmArena> arena;                       // results
      std::map<size_t, std::shared_ptr<VerbsGroup>> groups;  // by device; made when a rank needs it
      std::vector<bool> awaited;                             // ranks that may attach a queue pair, and have not
    };
    uint64_t token = 0;
    std::vector<OnLane> lanes;
  };
  Result<size_t> device_with(const VerbsGid& gid) const;
  Status serve(const JobPlan& plan, const JobTable::Placement& placement, Served* served);
  Status serve_lane(const JobPlan& plan, const JobTable::Placement& placement, uint32_t lane, Served* served);
  void clear(uint32_t job, const Served& served);

  JobTable table_;
  Place place_;
  ShmDoor* door_;
  const VerbsDevices& devices_;
  std::vector<Lane*> lanes_;
  std::map<uint32_t, Served> served_;
};

}  // namespace gatun
