#include "host/lib/datapath.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

constexpr int kRoundsPerPass = 8;         // receive bursts before the caller looks at its other duties
constexpr TimeNs kSendRetry = 200 * kUs;  // a transport without room is offered the packets again after this long

// Records must outlive every chunk in flight: a chunk can stand while W later ones of its tree, each of another operation,
// come and go.
size_t record_count(const Worker::Config& worker) {
  return std::bit_ceil(std::max<size_t>(2 * kOperationsMax, size_t{2} * worker.window * worker.trees));
}

}  // namespace

Datapath::Datapath(Config config, std::vector<std::unique_ptr<Transport>> links)
    : config_(std::move(config)),
      links_(std::move(links)),
      worker_(config_.worker),
      batches_(links_.size()),
      trees_(config_.worker.trees),
      records_(record_count(config_.worker)) {
  GATUN_CHECK(config_.trees.size() == config_.worker.trees);
  lends_ = std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->caps().lends; });
  if (!config_.retain) return;
  keep_ = std::make_unique<Keep>(config_);
  // Memory that is shared with the switch keeps an answer by itself: its place is taken again only 2W answers later.
  if (std::any_of(links_.begin(), links_.end(), [](const auto& link) { return !link->caps().reliable; })) {
    keep_->copies.resize(keep_->kept.size() * config_.payload_bytes);
  }
}

void Datapath::submit(Request* request) {
  request->number = worker_.submit(request->operation.chunks(), request->contract);
  request->submitted = true;
  record(request->number) = {.number = request->number,
                             .fingerprint = fingerprint(request->contract, request->number),
                             .used = true,
                             .lent = is_lent(request->operation.source()),
                             .contract = request->contract,
                             .operation = request->operation,
                             .request = request};
}

void Datapath::complete(Request* request, Status status) {
  request->status = std::move(status);
  completed_[completed_tail_++ % completed_.size()] = request;
}

void Datapath::fail_all(const Status& status) {
  failed_ = true;
  for (Batch& batch : batches_) batch.count = 0;
  give_all_back();
  for_each_live([&](Request* request) { complete(release(record(request->number)), status); });
}

Request* Datapath::poll_completed() {
  return completed_head_ == completed_tail_ ? nullptr : completed_[completed_head_++ % completed_.size()];
}

bool Datapath::poll_refused(Refusal* refusal) {
  if (refused_head_ == refused_tail_) return false;
  *refusal = refused_[refused_head_++ % refused_.size()];
  return true;
}

TimeNs Datapath::poll_timer(TimeNs now) const {
  for (const Batch& batch : batches_) {
    if (batch.count > 0) return std::min(worker_.poll_timer(), now + kSendRetry);
  }
  return worker_.poll_timer();
}

Status Datapath::health() const {
  for (const auto& link : links_) {
    if (Status status = link->health(); !status.ok()) return status;
  }
  return {};
}

bool Datapath::pass(TimeNs now) {
  if (failed_ || frozen_) return false;
  bool any = false;
  for (int round = 0; round < kRoundsPerPass; ++round) {
    bool more = false;
    for (uint32_t link = 0; link < links_.size(); ++link) {
      const int count = receive(link, now);
      any |= count > 0;
      more |= count == kBurst;
    }
    any |= send(now);
    if (!more) break;
  }
  return any;
}

int Datapath::receive(uint32_t link, TimeNs now) {
  const int count = links_[link]->receive(received_);
  std::array<BufferId, kBurst> buffers;
  size_t held = 0;
  for (int i = 0; i < count; ++i) {
    const RxPacket& packet = received_[static_cast<size_t>(i)];
    on_packet(link, packet, now);
    if (packet.buffer != kNoBuffer) buffers[held++] = packet.buffer;
  }
  if (held > 0) links_[link]->release(std::span(buffers).first(held));
  return count;
}

void Datapath::on_packet(uint32_t link, const RxPacket& packet, TimeNs now) {
  Header header;
  bool good = decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header) == Decode::kOk &&
              header.job == config_.job && header.tree < trees_.size() && config_.trees[header.tree].link == link &&
              config_.trees[header.tree].peer == packet.peer;
  if (good) {
    trees_[header.tree].heard_at = now;
    switch (header.type) {
      case PacketType::kResult:
        good = header.flags & kFlagRefused ? on_refused(header, now) : on_result(header, packet, now);
        break;
      case PacketType::kStatus: good = on_status(header, packet, now); break;
      case PacketType::kProbeReply: break;  // a late one
      case PacketType::kData:
      case PacketType::kProbe: good = false; break;
    }
  }
  dropped_ += !good;
}

bool Datapath::on_result(const Header& header, const RxPacket& packet, TimeNs now) {
  Worker::Chunk chunk;
  if (!worker_.find(header.tree, header.seq, &chunk)) return true;  // a repeated answer
  Record& r = record(chunk.op);
  // Worker believes what it is told, so everything that the payload's meaning rests on is compared first.
  const bool agrees = r.used && r.number == chunk.op && header.contract == r.fingerprint &&
                      header.elem_type == r.operation.wire_type() && header.reduce_op == r.operation.wire_op() &&
                      header.elems == r.operation.piece_elems(chunk.index) && !(header.flags & kFlagPartial) &&
                      (chunk.void_payload || !(header.flags & kFlagEmpty) || r.operation.empty());
  if (!agrees) return false;
  const bool congested = packet.congested || header.flags & kFlagCongested;
  const Worker::Outcome outcome = worker_.on_result(header.tree, header.seq, header.op, congested, now);
  if (outcome.fresh()) trees_[header.tree].asked_at = kNever;
  if (outcome.verdict != Worker::Verdict::kNews) return outcome.verdict != Worker::Verdict::kForeign;
  const Operation::Piece piece = r.operation.piece(outcome.index);
  if (keep_) retain(header.tree, outcome, packet, piece);
  if (piece.target) copy(piece.target, packet.payload + piece.kept_from, piece.kept_bytes);
  if (outcome.op_done && r.request) complete(release(r), {});
  return true;
}

bool Datapath::on_refused(const Header& header, TimeNs now) {
  const Worker::Outcome outcome = worker_.on_refused(header.tree, header.seq, header.op, now);
  if (outcome.fresh()) trees_[header.tree].asked_at = kNever;
  if (outcome.verdict == Worker::Verdict::kForeign) return false;
  if (outcome.verdict != Worker::Verdict::kFailed) return true;
  Record& r = record(outcome.op);
  if (!r.used || r.number != outcome.op || r.reported) return true;
  r.reported = true;
  Request* request = release(r);
  if (refused_tail_ - refused_head_ == refused_.size()) {
    if (request) complete(request, {Code::kMismatch, "ranks disagree on " + describe(r.contract)});
    return true;
  }
  refused_[refused_tail_++ % refused_.size()] = {.number = r.number, .contract = r.contract, .request = request};
  return true;
}

bool Datapath::on_status(const Header& header, const RxPacket& packet, TimeNs now) {
  worker_.on_status(header.tree, header.seq, now);
  const uint32_t count = take16(packet.payload);
  if (packet.payload_bytes < 2 + 2 * count) return false;
  uint64_t missing = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint16_t rank = take16(packet.payload + 2 + 2 * i);
    if (rank < 64) missing |= uint64_t{1} << rank;
  }
  TreeState& tree = trees_[header.tree];
  tree.status_seq = extend_seq(worker_.oldest(header.tree), header.seq);
  tree.missing = missing;
  tree.told = true;
  tree.asked_at = kNever;
  return true;
}

Datapath::Stall Datapath::stall(const Request& request) const {
  Stall best;
  uint32_t best_op = 0;
  for (uint32_t t = 0; t < trees_.size(); ++t) {
    const Seq oldest = worker_.oldest(t);
    Worker::Chunk chunk;
    if (!worker_.find(t, wire_seq(oldest), &chunk)) continue;
    // The chunk that holds the request up is its own, or one of an operation before it.
    if (serial_distance(chunk.op, request.number) > 0 || (best.found && serial_distance(chunk.op, best_op) >= 0)) continue;
    best_op = chunk.op;
    best = {.found = true, .tree = t, .index = chunk.index, .heard_at = trees_[t].heard_at};
    if (trees_[t].told && trees_[t].status_seq == oldest) best.missing = trees_[t].missing;
  }
  return best;
}

void Datapath::move_packet(Batch& batch, uint32_t from, uint32_t to) {
  if (from == to) return;
  batch.packets[to] = batch.packets[from];
  batch.numbers[to] = batch.numbers[from];
  batch.borrowed[to] = batch.borrowed[from];
}

bool Datapath::send(TimeNs now) {
  for (uint32_t link = 0; link < links_.size(); ++link) {
    Batch& batch = batches_[link];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < batch.count; ++i) {
      const Record& r = record(batch.numbers[i]);
      // The memory of an operation that has ended may be gone. What is still needed of it will be asked for again.
      if (batch.borrowed[i] && !(r.request && r.number == batch.numbers[i])) continue;
      move_packet(batch, i, kept++);
    }
    batch.count = kept;
    if (!flush(link)) return false;
  }
  bool any = false;
  Worker::Chunk chunk;
  while (worker_.poll_send(now, &chunk)) {
    any = true;
    encode_chunk(chunk);
    TreeState& tree = trees_[chunk.tree];
    tree.asked_at = std::min(tree.asked_at, now);
    const uint32_t link = config_.trees[chunk.tree].link;
    if (batches_[link].count == kBurst && !flush(link)) return true;
  }
  for (uint32_t link = 0; link < links_.size(); ++link) flush(link);
  return any;
}

void Datapath::encode_chunk(const Worker::Chunk& chunk) {
  const TreePath& path = config_.trees[chunk.tree];
  const Record& r = record(chunk.op);
  GATUN_CHECK(r.number == chunk.op);
  Batch& batch = batches_[path.link];
  TxPacket& packet = batch.packets[batch.count];
  bool& borrowed = batch.borrowed[batch.count];
  batch.numbers[batch.count++] = chunk.op;

  const Operation::Piece piece = r.operation.piece(chunk.index);
  Header header{.type = PacketType::kData,
                .tree = static_cast<uint8_t>(chunk.tree),
                .child = path.child,
                .job = config_.job,
                .seq = wire_seq(chunk.seq),
                .contract = r.fingerprint,
                .op = static_cast<uint16_t>(chunk.op),
                .elems = piece.elems,
                .elem_type = r.operation.wire_type(),
                .reduce_op = r.operation.wire_op()};
  if (chunk.repeat) header.flags |= kFlagRepeat;
  packet.peer = path.peer;
  packet.seen_at = nullptr;
  borrowed = false;
  if (chunk.void_payload || !piece.source) {
    header.flags |= kFlagEmpty;
    packet.payload = nullptr;
    packet.payload_bytes = 0;
  } else {
    header.contributors = 1;
    packet.payload = piece.source;
    packet.payload_bytes = piece.bytes;
    borrowed = r.lent || path.arena == nullptr;
    if (path.arena) {
      // The place was free: the answer to the chunk W before this one is here, so the switch is done with it.
      std::byte* place = path.arena + size_t{config_.payload_bytes} * (chunk.seq & (config_.worker.window - 1));
      if (r.lent) {
        packet.seen_at = place;
      } else {
        if (!chunk.repeat) copy(place, piece.source, piece.bytes);
        packet.payload = place;
      }
    }
  }
  encode(header, packet.payload, packet.payload_bytes, config_.checksum, packet.head);
}

// False if some packets had no room; they stay in the batch.
bool Datapath::flush(uint32_t link) {
  Batch& batch = batches_[link];
  if (batch.count == 0) return true;
  const auto sent = static_cast<uint32_t>(links_[link]->send(std::span<const TxPacket>(batch.packets).first(batch.count)));
  for (uint32_t i = sent; i < batch.count; ++i) move_packet(batch, i, i - sent);
  batch.count -= sent;
  return batch.count == 0;
}

}  // namespace gatun
