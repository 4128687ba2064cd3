// JobTable: what the jobs of one switch may use, and until when. Admission is all or nothing: bytes and trees of the whole
// job, or a sentence that says what is missing. A lease that is not renewed ends, so a job whose owner forgot it gives
// everything back. Pure; called by the daemon's control thread.
#pragma once

#include <cstdint>
#include <map>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class JobTable {
 public:
  struct Limits {
    uint64_t memory_bytes = 0;
    uint32_t trees = 0;  // (job, tree) pairs
  };
  struct Need {
    uint32_t trees = 0;
    uint64_t memory_bytes = 0;
  };

  explicit JobTable(const Limits& limits) : limits_(limits) {}

  // kRefused with the reason; nothing is taken then.
  Status admit(uint32_t job, const Need& need, TimeNs lease_until);
  bool renew(uint32_t job, TimeNs lease_until);
  bool remove(uint32_t job);
  // A job whose lease has ended; it stays until it is removed. False: none.
  bool poll_expired(TimeNs now, uint32_t* job) const;

  uint32_t jobs() const { return static_cast<uint32_t>(jobs_.size()); }
  uint32_t trees_used() const { return trees_used_; }
  uint64_t memory_used() const { return memory_used_; }
  const Limits& limits() const { return limits_; }

 private:
  struct Entry {
    Need need;
    TimeNs lease_until = 0;
  };
  Limits limits_;
  std::map<uint32_t, Entry> jobs_;
  uint32_t trees_used_ = 0;
  uint64_t memory_used_ = 0;
};

}  // namespace gatun
