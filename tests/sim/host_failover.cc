#include <algorithm>
#include <cstring>

#include "tests/sim/host.h"
#include "tests/sim/job.h"

// A host whose switch has been given up.

namespace gatun::sim {

Holdings Host::freeze() {
  worker_.freeze();
  return worker_.holdings();
}

bool Host::silent(TimeNs detect) const {
  return started_at_ != kNever && !frozen() && std::any_of(streams_.begin(), streams_.end(), [&](const TreeStream& stream) {
           return stream.floor != stream.next && world_.now - stream.heard_at >= detect;
         });
}

void Host::keep(uint32_t tree, Seq seq, uint32_t op, uint64_t index, const Packet& packet) {
  Bytes& place = streams_[tree].retained[retained_.on_news(tree, seq, op, index)];
  place.assign(packet.payload, packet.payload + packet.payload_bytes);
}

bool Host::retained(uint32_t index, uint64_t chunk, Bytes* payload) {
  uint32_t tree = 0, place = 0;
  if (!retained_.find(job_.plan().first_op + index, chunk, &tree, &place)) return false;
  *payload = streams_[tree].retained[place];
  return true;
}

Bytes Host::input_of(uint32_t index, uint64_t chunk) {
  Running& r = ops_[index];
  if (!r.shape.gives(rank_, chunk)) return {};
  const std::byte* const from = r.input.data() + r.shape.offset_bytes(chunk);
  return {from, from + r.shape.bytes(chunk)};
}

void Host::deliver(uint32_t index, uint64_t chunk, const Bytes& payload) {
  Running& r = ops_[index];
  if (r.state != State::kRunning || chunk >= r.shape.chunks() || r.accepted[chunk]) {
    world_.fail("once", "rank %u: chunk %llu of call %u comes from other ranks though it is held", rank_,
                static_cast<unsigned long long>(chunk), index);
    return;
  }
  uint32_t givers = 0;
  for (uint32_t rank = 0; rank < job_.plan().ranks; ++rank) givers += r.shape.gives(rank, chunk);
  const uint32_t bytes = givers == 0 ? 0 : r.shape.bytes(chunk);
  if (payload.size() != bytes) {
    world_.fail("fields", "rank %u: chunk %llu of call %u has %zu bytes, not %u", rank_,
                static_cast<unsigned long long>(chunk), index, payload.size(), bytes);
    return;
  }
  const uint32_t tree = static_cast<uint32_t>((job_.plan().first_op + uint64_t{index} + chunk) % job_.plan().trees);
  if (!check_values(r, chunk, tree, payload.data(), bytes)) return;
  r.accepted[chunk] = true;
  ++r.accepted_count;
  if (bytes > 0 && r.shape.takes(rank_, chunk)) {
    std::memcpy(r.out() + r.shape.offset_bytes(chunk), payload.data(), bytes);
  }
  if (r.accepted_count < r.shape.chunks()) return;
  finish(job_.plan().first_op + index, State::kDone);
  wake_at(world_.now);  // more may be called
}

void Host::fail(uint32_t index) {
  if (job_.plan().calls[index].same()) {
    world_.fail("agreement", "rank %u: call %u fails though all ranks agree on it", rank_, index);
    return;
  }
  world_.marks.hit(Mark::kOpFailed);
  if (ops_[index].accepted_count > 0) world_.fail("agreement", "rank %u: call %u fails after answers", rank_, index);
  finish(job_.plan().first_op + index, State::kFailed);
  wake_at(world_.now);
}

void Host::check_not_begun() {
  for (uint32_t index = 0; index < ops_.size(); ++index) {
    if (ops_[index].state != State::kRunning) continue;
    if (ops_[index].accepted_count > 0) {
      world_.fail("boundary", "rank %u: call %u has answers of one switch and goes over to the next", rank_, index);
      return;
    }
    check_untouched(job_.plan().first_op + index);
  }
}

}  // namespace gatun::sim
