// JobTable: which jobs a switch serves, on which lanes their trees lie, and what they may hold. Admission is here.
//
// A job is admitted as a whole or not at all. Its memory (result arenas, shm links) and the packets it may hold on a lane
// are counted against limits fixed at the start; while much is taken, a new job gets a smaller window, then smaller chunks,
// before it is refused. A job holds a lease that its owner renews; one that is not renewed is given out by poll_expired().
// Numbers only: the memory itself belongs to the caller. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "protocols/membership.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class JobTable {
 public:
  struct Config {
    uint64_t memory_bytes = uint64_t{256} << 20;
    uint32_t jobs_max = 64;
    uint32_t lanes = 1;
    uint32_t trees_max = 1024;  // of one lane
    uint32_t packets_max = 0;   // received over udp that one lane can hold; 0 = no limit
    TimeNs lease = 90 * kSecond;
    // Bytes of one rank's shm link to a lane that has so many of its trees; null = no shm.
    uint64_t (*link_bytes)(uint32_t trees, uint32_t window, uint32_t payload_bytes) = nullptr;
  };

  // What a job was given.
  struct Placement {
    uint32_t window = 0;         // at most the plan's
    uint32_t payload_bytes = 0;  // at most the plan's
    std::vector<uint8_t> lanes;  // by tree
    uint64_t memory_bytes = 0;
    uint32_t packets = 0;  // per tree
  };

  explicit JobTable(const Config& config);

  // kRefused: the sentence says what is missing, how much there is, and the setting that changes it.
  Result<Placement> admit(const JobPlan& plan, TimeNs now);
  bool remove(uint32_t job);  // false: it was not here
  void renew(uint32_t job, TimeNs now);
  bool poll_expired(TimeNs now, uint32_t* job) const;  // until the caller removes it, the same again
  TimeNs poll_timer() const;                           // when the next lease ends; kNever without jobs

  uint32_t jobs() const { return static_cast<uint32_t>(jobs_.size()); }
  uint32_t trees() const;
  uint64_t memory_bytes() const { return memory_bytes_; }  // in use
  uint64_t memory_bytes(uint32_t job) const {
    const auto found = jobs_.find(job);
    return found == jobs_.end() ? 0 : found->second.placement.memory_bytes;
  }
  uint32_t packets(uint32_t lane) const { return lanes_[lane].packets; }

 private:
  struct Lane {
    uint32_t trees = 0;
    uint32_t packets = 0;
  };
  struct Job {
    Placement placement;
    TimeNs lease_end = 0;
  };
  Placement place(const JobPlan& plan) const;
  void measure(const JobPlan& plan, Placement* placement) const;
  bool modest(const Placement& placement) const;
  Status fits(const Placement& placement) const;

  Config config_;
  std::vector<Lane> lanes_;
  std::map<uint32_t, Job> jobs_;
  uint64_t memory_bytes_ = 0;
};

}  // namespace gatun
