#include <algorithm>

#include "protocols/worker.h"

// What a Worker holds, for the others, when its switch is given up.

namespace gatun {

// The operation that the next first sending would be of, as seek_chunk() finds it.
Holdings::Chunk Worker::cursor(const Tree& tree, uint32_t tree_index) const {
  Holdings::Chunk at{.op = tree.send_op, .index = tree.send_index};
  for (; at.op != op_tail_; ++at.op, at.index = first_index(tree_index, at.op)) {
    if (!live(at.op)) continue;
    const Operation& current = operations_[at.op & (kOperationsMax - 1)];
    if (!current.failed && at.index < current.chunks) break;
  }
  return at;
}

Holdings Worker::holdings() const {
  Holdings holdings;
  holdings.next_op = op_tail_;
  for (uint32_t index = 0; index < config_.trees; ++index) {
    const Tree& tree = trees_[index];
    Holdings::Tree& out = holdings.trees.emplace_back();
    bool found = false;
    const Seq end = tree.voiding ? tree.refused : tree.next;
    for (Seq seq = tree.base; seq < end; ++seq) {
      const Entry& e = entry(tree, seq);
      if (e.tombstone) continue;  // nobody has an answer to an operation on which the ranks disagree
      const bool said = found && !mutated(Mutation::kAheadForgotten);
      if (e.state == kHeld && said) out.ahead.push_back({.op = e.op, .index = e.index});
      if (e.state == kHeld || found) continue;
      out.next = {.op = e.op, .index = e.index};
      found = true;
    }
    if (!found) out.next = cursor(tree, index);
    // Once the answer behind the void chunks is held, every rank has contributed there and so has heard of the refusal.
    if (tree.voiding || tree.restarting) holdings.refused.push_back(tree.refused_op);
  }
  std::vector<uint32_t>& refused = holdings.refused;
  std::sort(refused.begin(), refused.end(), [](uint32_t a, uint32_t b) { return serial_distance(a, b) < 0; });
  refused.erase(std::unique(refused.begin(), refused.end()), refused.end());
  if (mutated(Mutation::kRefusalForgotten)) refused.clear();

  const uint64_t kept = std::min<uint64_t>(recent_count_, recent_.size());
  for (uint64_t i = recent_count_ - kept; i < recent_count_; ++i) {
    holdings.operations.push_back(recent_[i & (recent_.size() - 1)]);
  }
  return holdings;
}

}  // namespace gatun
