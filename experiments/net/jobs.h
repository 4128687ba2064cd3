// Jobs: training, as the network sees it. Each rank computes for a fixed time, then takes part in an all-reduce of the
// model's gradients, and begins again as soon as it has the result.
//
// An iteration of a job ends when its last rank has the result. Jobs go on until they are told to stop, so that the load is
// the same until the last one has its iterations; what some rank has begun then, all ranks of the job finish.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/net/network.h"

namespace gatun::net {

struct JobSpec {
  std::string model;
  uint64_t bytes = 0;  // of gradients
  TimePs compute = 0;  // of an iteration
  TimePs begins = 0;
  std::vector<uint32_t> hosts;  // of its ranks
};

class Jobs {
 public:
  struct Job {
    JobSpec spec;
    uint32_t first_rank = 0;
    uint32_t begun = 0;                // iterations that some rank has begun
    std::vector<uint32_t> ranks_done;  // by iteration
    std::vector<TimePs> ends;          // of iterations
  };

  Jobs(Network& network, std::vector<JobSpec> specs, uint32_t iterations);

  void start();
  void stop() { stopping_ = true; }
  uint64_t bytes(uint32_t rank) const { return jobs_[ranks_[rank].job].spec.bytes; }
  void on_reduced(uint32_t rank);
  // All jobs have their iterations.
  bool done() const { return jobs_done_ == jobs_.size(); }
  double progress() const;  // 0 to 1
  const std::vector<Job>& jobs() const { return jobs_; }

 private:
  struct Rank {
    uint32_t job = 0, iteration = 0;
  };
  void begin(uint32_t rank);

  Network& network_;
  uint32_t iterations_;
  std::vector<Job> jobs_;
  std::vector<Rank> ranks_;
  size_t jobs_done_ = 0;
  uint64_t iterations_done_ = 0;  // of those that are asked for
  bool stopping_ = false;
};

}  // namespace gatun::net
