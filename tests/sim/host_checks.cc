#include <algorithm>
#include <cstring>

#include "tests/sim/host.h"
#include "tests/sim/job.h"

// What a host checks: each answer, each chunk it is asked to send, and its buffers when an operation has ended.

namespace gatun::sim {

bool Host::always_marked(uint32_t tree) const {
  const uint32_t marked = world_.plan.marked_link;
  if (marked >= kEndpoints) return false;
  const JobPlan& plan = job_.plan();
  if (marked >= kSwitches)
    return (marked - kSwitches) / kRanksMax == plan.line && (marked - kSwitches) % kRanksMax < plan.ranks;
  const auto& switches = plan.tree_plans[tree].switches;
  return std::any_of(switches.begin(), switches.end(), [&](const SwitchPlan& node) { return node.id == marked; });
}

bool Host::check_answer(const Header& header, const Packet& packet, const Running& r, uint64_t index) {
  uint32_t givers = 0;
  for (uint32_t rank = 0; rank < job_.plan().ranks; ++rank) givers += r.shape.gives(rank, index);
  const uint32_t bytes = givers == 0 ? 0 : r.shape.bytes(index);
  if (header.contract != r.contract || header.elems != r.shape.elems(index) || header.elem_type != r.op->type ||
      header.reduce_op != r.op->op || header.contributors != givers || packet.payload_bytes != bytes) {
    world_.fail("fields", "rank %u: tree %u chunk %#x does not fit its operation: %u contributors, not %u; %u bytes, not %u",
                rank_, header.tree, header.seq, header.contributors, givers, packet.payload_bytes, bytes);
    return false;
  }
  return check_values(r, index, header.tree, packet.payload, bytes);
}

bool Host::check_values(const Running& r, uint64_t index, uint32_t tree, const std::byte* payload, uint32_t bytes) {
  if (bytes == 0) return true;
  const Bytes& want = job_.expected(static_cast<uint32_t>(&r - ops_.data()));
  const std::byte* part = want.data() + r.shape.offset_bytes(index);
  if (std::memcmp(part, payload, bytes) == 0) return true;
  world_.fail("values", "rank %u: op %#zx (%s) chunk %llu on tree %u%s: %s", rank_,
              static_cast<size_t>(&r - ops_.data()) + job_.plan().first_op, describe(r.op->contract()).c_str(),
              static_cast<unsigned long long>(index), tree, frozen() ? " (frozen)" : "",
              difference(*r.op, r.shape, index, payload, part).c_str());
  return false;
}

bool Host::check_chunk(const Worker::Chunk& chunk) {
  const JobPlan& plan = job_.plan();
  const auto tree = (uint64_t{chunk.op} + chunk.index) % plan.trees;
  Running* r = running(chunk.op);
  if (!r || chunk.index >= r->shape.chunks() || chunk.tree != tree) {
    world_.fail("stream", "rank %u: tree %u chunk %#llx belongs to no operation there", rank_, chunk.tree,
                static_cast<unsigned long long>(chunk.seq));
    return false;
  }
  TreeStream& stream = streams_[chunk.tree];
  const bool answered = chunk.seq < stream.floor || stream.answered[chunk.seq & (stream.answered.size() - 1)];
  if (chunk.seq >= stream.floor + plan.window) {
    world_.fail("window", "rank %u: tree %u chunk %#llx sent while %#llx has no answer, window %u", rank_, chunk.tree,
                static_cast<unsigned long long>(chunk.seq), static_cast<unsigned long long>(stream.floor), plan.window);
    return false;
  }
  if (chunk.repeat ? chunk.seq >= stream.next || answered : chunk.seq != stream.next) {
    world_.fail("stream", "rank %u: tree %u chunk %#llx sent out of turn%s, next is %#llx", rank_, chunk.tree,
                static_cast<unsigned long long>(chunk.seq), answered ? ", answered" : "",
                static_cast<unsigned long long>(stream.next));
    return false;
  }
  if (!chunk.void_payload && r->state != State::kRunning) {
    world_.fail("buffers", "rank %u: op %#x has ended and its buffer is still sent from", rank_, chunk.op);
    return false;
  }
  if (!chunk.repeat) {
    ++stream.next;
    if (stream.next == Seq{1} << 32 || wire_seq(stream.next) == 0) world_.marks.hit(Mark::kSeqWrap);
  }
  return true;
}

void Host::check_output(uint32_t number) {
  Running& r = *running(number);
  const uint32_t index = number - job_.plan().first_op;
  const Bytes& want = job_.expected(index);
  Bytes input;
  for (uint64_t chunk = 0; chunk < r.shape.chunks(); ++chunk) {
    const uint64_t at = r.shape.offset_bytes(chunk);
    const uint32_t bytes = r.shape.bytes(chunk);
    if (bytes == 0) continue;  // a barrier
    const std::byte* out = r.out() + at;
    bool right;
    if (r.shape.takes(rank_, chunk)) {
      right = std::memcmp(out, want.data() + at, bytes) == 0;
    } else if (r.op->in_place) {
      if (input.empty()) {
        input.resize(r.input.size());
        fill_input(*r.op, r.shape, rank_, input.data());
      }
      right = std::memcmp(out, input.data() + at, bytes) == 0;
    } else {
      right = std::all_of(out, out + bytes, [](std::byte b) { return b == kUntouchedByte; });
    }
    if (!right) {
      world_.fail("output", "rank %u: chunk %llu of op %#x is wrong in the buffer", rank_,
                  static_cast<unsigned long long>(chunk), number);
      return;
    }
  }
}

void Host::check_untouched(uint32_t number) {
  Running& r = *running(number);
  bool untouched = std::all_of(r.output.begin(), r.output.end(), [](std::byte b) { return b == kUntouchedByte; });
  if (r.op->in_place) {
    Bytes input(r.input.size());
    fill_input(*r.op, r.shape, rank_, input.data());
    untouched = input == r.input;
  }
  if (!untouched) world_.fail("failed output", "rank %u: op %#x failed and its buffer was written", rank_, number);
}

}  // namespace gatun::sim
