// JobRun: one job on its hosts and switches, from admission over the proof of its data paths to its end or violent death.
//
// It keeps what is common to the ranks: the expected results, and where and when each chunk was answered, which must be the
// same for all.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sim/host.h"
#include "tests/sim/network.h"
#include "tests/sim/switch.h"
#include "tests/sim/world.h"

namespace gatun::sim {

class JobRun {
 public:
  JobRun(World& world, Network& network, std::vector<std::unique_ptr<Switch>>& switches, const JobPlan& plan);

  void admit();
  bool probe();  // sends what is not proven; false once all is
  void start();  // the ranks, once all is proven
  void begin_calls();  // the plan's calls are known now (failover.h)
  bool started() const { return started_; }
  void begin_exam();  // once all ranks wait for it
  bool waits_for_exam() const;
  bool done() const;
  void check_end();  // of a job that ran to its end
  void kill();       // its ranks, at once; also when another job takes the place of one that has ended
  void remove_tree(uint32_t tree, uint32_t node);
  void remove_all();

  const JobPlan& plan() const { return plan_; }
  Host* host(uint32_t rank) { return rank < hosts_.size() ? hosts_[rank].get() : nullptr; }
  bool alive() const { return alive_; }
  const Bytes& expected(uint32_t number);
  void on_op_finished(uint32_t number);

  // Every rank sees the same chunk in the same place with the same stamp.
  void check_place(const Host& host, uint32_t tree, Seq seq, uint32_t op, uint64_t index, uint32_t root_us);
  void check_exam(const Host& host, uint32_t tree, Seq seq);

 private:
  struct Place {
    bool seen = false;
    uint32_t op = 0, root_us = 0;
    uint64_t index = 0;
  };
  TimeNs round_trip_max() const;

  World& world_;
  Network& network_;
  std::vector<std::unique_ptr<Switch>>& switches_;
  const JobPlan& plan_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<Bytes> expected_;
  std::vector<uint32_t> finished_by_;       // per operation, ranks
  std::vector<std::vector<Place>> places_;  // per tree, by seq - first_seq
  uint32_t exam_tree_ = 0;                  // of the chunk that is lost in the exam
  Seq exam_seq_ = 0;
  bool started_ = false, alive_ = true, examined_ = false;
};

}  // namespace gatun::sim
