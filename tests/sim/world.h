// World: what the parts of one run share: the plan, the time, the event queue, the verdict, the trace.
//
// The first violated checker ends the run. The hash covers every packet that was sent and when, so two runs of one seed are
// the same run exactly if their hashes are.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "tests/sim/event_queue.h"
#include "tests/sim/marks.h"
#include "tests/sim/plan.h"

namespace gatun::sim {

enum class EventKind : uint8_t { kDeliver, kHost, kSwitch, kTimeline, kFailover };
// The index is of a packet, host, switch, timeline entry, or line.
using Events = EventQueue<EventKind>;

// Keeps the last lines, or prints all of them.
struct Trace {
  bool print = false;
  std::deque<std::string> lines;
};

struct World {
  explicit World(const Plan& p, Trace* t) : plan(p), trace(t) {}

  const Plan& plan;
  Trace* trace;  // null: none wanted
  Events queue;
  TimeNs now = 0;
  Marks marks;
  uint64_t hash = 0xcbf29ce484222325u;
  std::string failure;  // of the first checker that was violated; empty: none

  bool failed() const { return !failure.empty(); }
  bool healed() const { return now >= plan.heals_at; }
  void hash_in(uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; }
  [[gnu::format(printf, 3, 4)]] void fail(const char* checker, const char* format, ...);
  [[gnu::format(printf, 2, 3)]] void log(const char* format, ...);  // call only with a trace
};

}  // namespace gatun::sim
