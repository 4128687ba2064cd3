// The simulator's clockwork: events in a 4-ary heap, earliest first, first in first out among equals.
//
// Plain values without pointers, so the order is a pure function of what was pushed. Four children a node halve the depth of
// a binary heap and keep siblings in one cache line or two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun::sim {

enum class EventKind : uint8_t { kDeliver, kHost, kSwitch, kTimeline, kFailover };

struct Event {
  TimeNs time = 0;
  uint64_t order = 0;  // of pushing
  EventKind kind = EventKind::kDeliver;
  uint32_t index = 0;  // packet, host, switch, timeline entry, or line
};

class EventQueue {
 public:
  void push(TimeNs time, EventKind kind, uint32_t index) {
    heap_.push_back({time, order_++, kind, index});
    size_t child = heap_.size() - 1;
    const Event event = heap_[child];
    while (child > 0) {
      const size_t parent = (child - 1) / 4;
      if (!before(event, heap_[parent])) break;
      heap_[child] = heap_[parent];
      child = parent;
    }
    heap_[child] = event;
  }

  Event pop() {
    GATUN_CHECK(!heap_.empty());
    const Event top = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    return top;
  }

  bool empty() const { return heap_.empty(); }
  uint64_t pushed() const { return order_; }

 private:
  static bool before(const Event& a, const Event& b) { return a.time != b.time ? a.time < b.time : a.order < b.order; }

  void sink(const Event& event) {
    size_t hole = 0;
    for (;;) {
      const size_t first = 4 * hole + 1;
      if (first >= heap_.size()) break;
      const size_t end = std::min(first + 4, heap_.size());
      size_t best = first;
      for (size_t i = first + 1; i < end; ++i) {
        if (before(heap_[i], heap_[best])) best = i;
      }
      if (!before(heap_[best], event)) break;
      heap_[hole] = heap_[best];
      hole = best;
    }
    heap_[hole] = event;
  }

  std::vector<Event> heap_;
  uint64_t order_ = 0;
};

}  // namespace gatun::sim
