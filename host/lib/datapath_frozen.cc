// Datapath without its switch: what a rank still has, and how what it lacks is put in place.
#include <algorithm>
#include <cstring>

#include "host/lib/datapath.h"

namespace gatun {

// The place's earlier payload is of the chunk W before, which every rank holds by now (PROTOCOL.md, "When a switch dies").
void Datapath::retain(uint32_t tree, const Worker::Outcome& outcome, const RxPacket& packet) {
  const uint32_t place = keep_->index.on_news(tree, outcome.seq, outcome.op, outcome.index);
  std::span<const std::byte>& kept = keep_->payloads[size_t{tree} * config_.worker.window + place];
  if (packet.buffer == kNoBuffer && keep_->copies.empty()) {
    kept = {packet.payload, packet.payload_bytes};
    return;
  }
  // (A test's lossy shared memory hands out copies too.)
  if (keep_->copies.empty()) keep_->copies.resize(keep_->payloads.size() * config_.payload_bytes);
  std::byte* copy = keep_->copies.data() + (size_t{tree} * config_.worker.window + place) * config_.payload_bytes;
  std::memcpy(copy, packet.payload, packet.payload_bytes);
  kept = {copy, packet.payload_bytes};
}

Holdings Datapath::freeze() {
  frozen_ = true;
  worker_.freeze();
  for (Batch& batch : batches_) batch.count = 0;
  return worker_.holdings();
}

bool Datapath::retained(uint32_t op, uint64_t index, std::span<const std::byte>* payload) const {
  uint32_t tree = 0, place = 0;
  if (!keep_ || !keep_->index.find(op, index, &tree, &place)) return false;
  *payload = keep_->payloads[size_t{tree} * config_.worker.window + place];
  return true;
}

void Datapath::deliver(uint32_t op, uint64_t index, const std::byte* payload) {
  const Record& r = record(op);
  if (!r.request || r.number != op) return;
  const Operation::Piece piece = r.operation.piece(index);
  if (piece.target) std::memcpy(piece.target, payload + piece.kept_from, piece.kept_bytes);
}

TimeNs Datapath::unanswered_since() const {
  TimeNs since = kNever;
  Worker::Chunk chunk;
  for (uint32_t t = 0; t < trees_.size(); ++t) {
    if (worker_.find(t, wire_seq(worker_.oldest(t)), &chunk)) since = std::min(since, trees_[t].asked_at);
  }
  return since;
}

}  // namespace gatun
