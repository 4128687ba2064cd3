// Datapath without its switch: what a rank still has, and how what it lacks is put in place.
#include <algorithm>
#include <cstring>

#include "host/lib/datapath.h"

namespace gatun {

// The place's earlier payload is of the chunk W before, which every rank holds by now (PROTOCOL.md, "When a switch dies").
// What an operation keeps whole lies in its tensor, which is nobody else's until it ends: of one that is longer than the
// window, most are forgotten by then and need no copy.
void Datapath::retain(uint32_t tree, const Worker::Outcome& outcome, const RxPacket& packet, const Operation::Piece& piece) {
  const size_t place =
      size_t{tree} * config_.worker.window + keep_->index.on_news(tree, outcome.seq, outcome.op, outcome.index);
  if (packet.buffer == kNoBuffer && keep_->copies.empty()) {
    keep_->kept[place] = {.payload = {packet.payload, packet.payload_bytes}};
    return;
  }
  Record& r = record(outcome.op);
  const bool whole = piece.target && piece.kept_bytes == piece.bytes && packet.payload_bytes == piece.bytes;
  if (whole && r.request && r.operation.chunks() > keep_->kept.size()) {
    keep_->kept[place] = {.payload = {piece.target, piece.bytes}, .op = outcome.op, .in_tensor = true};
    r.keeps = true;
    return;
  }
  copy_kept(place, packet.payload, packet.payload_bytes);
}

void Datapath::copy_kept(size_t place, const std::byte* payload, uint32_t bytes) {
  // (A test's lossy shared memory hands out copies too.)
  if (keep_->copies.empty()) keep_->copies.resize(keep_->kept.size() * config_.payload_bytes);
  std::byte* at = keep_->copies.data() + place * config_.payload_bytes;
  copy(at, payload, bytes);
  keep_->kept[place] = {.payload = {at, bytes}};
}

// The operation ends here: its request goes back to the caller, and its memory with it. Null: it had ended.
Request* Datapath::release(Record& record) {
  for (size_t place = 0; record.keeps && place < keep_->kept.size(); ++place) {
    const Kept& kept = keep_->kept[place];
    if (kept.in_tensor && kept.op == record.number) {
      copy_kept(place, kept.payload.data(), static_cast<uint32_t>(kept.payload.size()));
    }
  }
  record.keeps = false;
  return std::exchange(record.request, nullptr);
}

Holdings Datapath::freeze() {
  frozen_ = true;
  worker_.freeze();
  for (Batch& batch : batches_) batch.count = 0;
  give_all_back();
  return worker_.holdings();
}

bool Datapath::retained(uint32_t op, uint64_t index, std::span<const std::byte>* payload) const {
  uint32_t tree = 0, place = 0;
  if (!keep_ || !keep_->index.find(op, index, &tree, &place)) return false;
  *payload = keep_->kept[size_t{tree} * config_.worker.window + place].payload;
  return true;
}

void Datapath::deliver(uint32_t op, uint64_t index, const std::byte* payload) {
  const Record& r = record(op);
  if (!r.request || r.number != op) return;
  const Operation::Piece piece = r.operation.piece(index);
  if (piece.target) copy(piece.target, payload + piece.kept_from, piece.kept_bytes);
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
