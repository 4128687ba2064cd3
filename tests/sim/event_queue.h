// The simulators' clockwork: events in a 4-ary heap, earliest first, first in first out among equals.
//
// Plain values without pointers, so the order is a pure function of what was pushed. Four children a node halve the depth of
// a binary heap and keep siblings in one cache line or two. Kind is the simulator's own enum, and time counts in its unit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "protocols/status.h"

namespace gatun::sim {

template <typename Kind>
class EventQueue {
 public:
  struct Event {
    int64_t time = 0;
    uint64_t order = 0;  // of pushing
    Kind kind{};
    uint32_t index = 0;  // of what the kind is about
  };

  void push(int64_t time, Kind kind, uint32_t index) {
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

  // Takes the event that pop() would and puts a later one of the same kind and index in its place, in one pass.
  Event pop_and_push(int64_t time) {
    GATUN_CHECK(!heap_.empty());
    const Event top = heap_.front();
    sink({time, order_++, top.kind, top.index});
    return top;
  }

  const Event& top() const { return heap_.front(); }
  bool empty() const { return heap_.empty(); }
  uint64_t pushed() const { return order_; }

 private:
  // One comparison of 128 bits, without a branch: which of four is least cannot be predicted. No time is negative.
  static bool before(const Event& a, const Event& b) { return key(a) < key(b); }
  static unsigned __int128 key(const Event& e) {
    return static_cast<unsigned __int128>(static_cast<uint64_t>(e.time)) << 64 | e.order;
  }

  void sink(const Event& event) {
    Event* const heap = heap_.data();
    const size_t size = heap_.size();
    size_t hole = 0, first = 1;
    for (; first + 3 < size; first = 4 * hole + 1) {
      const size_t a = first + before(heap[first + 1], heap[first]);
      const size_t b = first + 2 + before(heap[first + 3], heap[first + 2]);
      const size_t best = before(heap[b], heap[a]) ? b : a;
      if (!before(heap[best], event)) {
        heap[hole] = event;
        return;
      }
      heap[hole] = heap[best];
      hole = best;
    }
    // The last children may be fewer than four.
    const auto best = std::min_element(heap + std::min(first, size), heap + size, before);
    if (best != heap + size && before(*best, event)) {
      heap[hole] = *best;
      hole = static_cast<size_t>(best - heap);
    }
    heap[hole] = event;
  }

  std::vector<Event> heap_;
  uint64_t order_ = 0;
};

}  // namespace gatun::sim
