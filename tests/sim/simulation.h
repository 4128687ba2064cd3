// Simulation: one seed from the plan to the verdict. Everything happens in one event loop on simulated time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/failover.h"
#include "tests/sim/job.h"
#include "tests/sim/network.h"
#include "tests/sim/plan.h"
#include "tests/sim/switch.h"
#include "tests/sim/world.h"

namespace gatun::sim {

struct Verdict {
  std::string failure;  // empty: all checkers are content
  uint64_t hash = 0;    // of everything that was sent
  uint64_t packets = 0, events = 0;
  TimeNs time = 0;  // simulated
  Marks marks;
};

// Runs one plan. trace: null, or where the run's events are told.
Verdict simulate(const Plan& plan, Trace* trace);

class Simulation {
 public:
  Simulation(const Plan& plan, Trace* trace);
  Verdict run();

 private:
  // What happens to a line of jobs besides packets: kept as data, in the event queue by index.
  enum class Act : uint8_t { kAdmit, kProbe, kExam, kKill, kRemove, kNext };
  struct Entry {
    Act act = Act::kAdmit;
    uint32_t line = 0;
    uint32_t epoch = 0;
    uint32_t tree = 0, node = 0;  // kRemove
  };
  struct Line {
    uint32_t epoch = 0;
    std::unique_ptr<JobRun> job;
    std::unique_ptr<Failover> failover;  // instead of job, when ranks may outlive their switches
    bool finished = false;
    bool exam_due = false;
  };

  void at(TimeNs time, const Entry& entry);
  void on_timeline(const Entry& entry);
  void on_host(uint32_t endpoint);
  void deliver(uint32_t packet);
  void start_killed_timer(uint32_t line);
  void kill(uint32_t line);
  void on_switch(uint32_t id);
  void after_host_ran(uint32_t line);
  void check_end();
  TimeNs deadline() const;
  std::string progress() const;

  const Plan& plan_;
  World world_;
  Network network_;
  std::vector<std::unique_ptr<Switch>> switches_;
  std::vector<Line> lines_;
  std::vector<std::unique_ptr<JobRun>> buried_;  // what dead jobs sent by reference is still on its way
  std::vector<Entry> entries_;
  uint32_t crashes_ = 0;
};

}  // namespace gatun::sim
