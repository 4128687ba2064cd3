#include "tests/sim/host.h"

#include <algorithm>
#include <cstring>

#include "protocols/big_endian.h"
#include "tests/sim/job.h"

namespace gatun::sim {
namespace {

constexpr std::byte kGone{0xee};  // buffers that the caller has taken back
// How often a rank may be asked to send before it has been told anything new: everything in flight, twice.
uint64_t sends_max(const JobPlan& job) {
  return uint64_t{2} * job.trees * job.window + 8;
}

Worker::Config worker_config(const JobPlan& job, uint32_t rank) {
  return {.trees = job.trees,
          .window = job.window,
          .window_initial = job.window_initial,
          .reliable = job.paths[rank] == Path::kShared,
          .rto_initial = job.rto_initial,
          .rto_min = job.rto_min,
          .rto_max = job.rto_max,
          .first_seq = job.first_seq,
          .first_op = job.first_op};
}

}  // namespace

Host::Host(World& world, Network& network, JobRun& job, uint32_t rank)
    : world_(world),
      network_(network),
      job_(job),
      rank_(rank),
      endpoint_(host_endpoint(job.plan().line, rank)),
      path_(job.plan().paths[rank]),
      worker_(worker_config(job.plan(), rank)),
      streams_(job.plan().trees),
      retained_(job.plan().trees, job.plan().window),
      last_released_(!job.plan().exam) {
  const JobPlan& plan = job.plan();
  for (uint32_t t = 0; t < plan.trees; ++t) {
    const TreePlan& tree = plan.tree_plans[t];
    const TreePlan::Leaf leaf = tree.leaf_of_rank[rank];
    TreeStream& stream = streams_[t];
    stream.leaf = tree.switches[leaf.index].id;
    stream.child = static_cast<uint8_t>(leaf.child);
    stream.floor = stream.next = plan.first_seq;
    stream.answered.assign(size_t{4} * plan.window, false);
    stream.retained.resize(plan.window);
    if (path_ != Path::kCopied) stream.arena.assign(size_t{plan.window} * plan.payload_bytes, kUntouchedByte);
    network_.connect(endpoint_, stream.leaf, path_);
  }
}

void Host::send_probes() {
  for (uint32_t t = 0; t < streams_.size(); ++t) {
    if (streams_[t].proven) continue;
    std::byte payload[kPayloadMax] = {};
    const uint64_t token = job_.plan().token + t;
    put64(&payload[0], token);
    TxPacket tx{.payload = payload, .payload_bytes = job_.plan().payload_bytes};
    const Header header{
        .type = PacketType::kProbe, .tree = static_cast<uint8_t>(t), .child = streams_[t].child, .job = job_.plan().handle};
    encode(header, payload, tx.payload_bytes, true, tx.head);
    network_.send(endpoint_, streams_[t].leaf, tx);
  }
}

bool Host::proven() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const TreeStream& stream) { return stream.proven; });
}

void Host::start(TimeNs at) {
  ops_.reserve(job_.plan().calls.size());
  done_ = job_.plan().calls.empty();
  for (TreeStream& stream : streams_) stream.heard_at = at;
  started_at_ = next_submit_ = at;
  wake_at(at);
}

bool Host::waits_for_exam() const {
  return job_.plan().exam && !last_released_ && ops_.size() + 1 == job_.plan().calls.size() && finished_ == ops_.size();
}

void Host::release_last_call() {
  last_released_ = true;
  next_submit_ = world_.now;
  wake_at(world_.now);
}

void Host::wake_at(TimeNs at) {
  if (at >= next_run_) return;
  next_run_ = at;
  world_.queue.push(at, EventKind::kHost, endpoint_);
}

void Host::on_delivery(uint32_t packet) {
  inbox_.push_back(packet);
  wake_at(world_.plan.runs_at(endpoint_, world_.now));
}

void Host::on_run() {
  if (world_.now < next_run_) return;  // asked for, then asked for earlier
  const TimeNs may = world_.plan.runs_at(endpoint_, world_.now);
  next_run_ = kNever;
  if (may > world_.now) {
    world_.marks.hit(Mark::kPausedHost);
    return wake_at(may);
  }
  for (size_t i = 0; i < inbox_.size(); ++i) {
    if (!world_.failed()) handle(inbox_[i]);
    network_.free(inbox_[i]);
  }
  inbox_.clear();
  if (world_.failed() || started_at_ == kNever) return;
  if (world_.now < started_at_) return wake_at(started_at_);
  submit_due();
  if (frozen()) return;
  send_due();
  if (world_.failed()) return;

  const TimeNs timer = worker_.poll_timer();
  if (timer <= world_.now) {
    world_.fail("timer", "rank %u: the timer stands in the past after everything was polled", rank_);
  } else if (timer != kNever) {
    Stream random(world_.plan.seed, Draw::kHost, endpoint_, static_cast<uint64_t>(world_.now));
    wake_at(timer + static_cast<TimeNs>(random.below(static_cast<uint64_t>(world_.plan.timer_slack))));
  }
  if (done_ && (!worker_.idle() || timer != kNever)) {
    world_.fail("idle", "rank %u: all operations have ended but the worker is not idle", rank_);
  }
}

void Host::die(bool poison) {
  for (const uint32_t packet : inbox_) network_.free(packet);
  inbox_.clear();
  if (!poison) return;
  for (TreeStream& stream : streams_) std::fill(stream.arena.begin(), stream.arena.end(), kGone);
}

void Host::handle(uint32_t index) {
  const Packet& packet = network_.packet(index);
  Header header;
  const Decode decoded = decode(packet.head.data(), packet.payload, packet.payload_bytes, packet.checksummed, &header);
  if (decoded != Decode::kOk) {
    if (decoded == Decode::kChecksum) world_.marks.hit(Mark::kHostChecksum);
    return;
  }
  if (header.job != job_.plan().handle || header.tree >= streams_.size() || packet.from != streams_[header.tree].leaf) {
    world_.marks.hit(Mark::kHostStranger);
    return;
  }
  switch (header.type) {
    case PacketType::kResult: return header.flags & kFlagRefused ? on_refusal(header) : on_answer(header, packet);
    case PacketType::kStatus: return on_status(header, packet);
    case PacketType::kProbeReply: streams_[header.tree].proven = true; return;
    default: return;
  }
}

// A STATUS answers a contribution of ours that is there, so it cannot name us.
void Host::on_status(const Header& header, const Packet& packet) {
  world_.marks.hit(Mark::kStatusSeen);
  const auto number_at = [&](uint32_t at) {
    return std::to_integer<uint32_t>(packet.payload[at]) << 8 | std::to_integer<uint32_t>(packet.payload[at + 1]);
  };
  const uint32_t count = number_at(0);
  if (packet.payload_bytes != 2 + 2 * count || count == 0) {
    world_.fail("status", "rank %u: a STATUS of %u bytes names %u ranks", rank_, packet.payload_bytes, count);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t named = number_at(2 + 2 * i);
    if (named == rank_ || named >= job_.plan().ranks)
      world_.fail("status", "rank %u: a STATUS says rank %u is missing", rank_, named);
  }
  streams_[header.tree].heard_at = world_.now;
  worker_.on_status(header.tree, header.seq, world_.now);
}

Host::Running* Host::running(uint32_t number) {
  const uint32_t index = number - job_.plan().first_op;
  return index < ops_.size() ? &ops_[index] : nullptr;
}

void Host::on_answer(const Header& header, const Packet& packet) {
  const bool congested = packet.congested || header.flags & kFlagCongested;
  const Worker::Outcome outcome = worker_.on_result(header.tree, header.seq, header.op, congested, world_.now);
  if (outcome.fresh()) streams_[header.tree].heard_at = world_.now;
  if (worker_.window_chunks(header.tree) == 1) world_.marks.hit(Mark::kWindowOne);
  switch (outcome.verdict) {
    case Worker::Verdict::kOld: world_.marks.hit(Mark::kOld); return;
    case Worker::Verdict::kHeldBack: world_.marks.hit(Mark::kHeldBack); return;
    case Worker::Verdict::kForeign: world_.marks.hit(Mark::kForeignNumber); return;
    case Worker::Verdict::kFailed:
      world_.fail("verdict", "rank %u: an answer with a sum failed an operation", rank_);
      return;
    case Worker::Verdict::kNews: break;
  }
  world_.marks.hit(Mark::kNews);
  const bool may_be_marked = world_.plan.has(Fault::kMark);
  if (congested && !may_be_marked) world_.fail("marks", "rank %u: an answer is marked though nothing was", rank_);
  if (!congested && always_marked(header.tree)) {
    world_.fail("marks", "rank %u: tree %u chunk %#x: the mark of a contribution or answer got lost", rank_, header.tree,
                header.seq);
  }
  keep(header.tree, outcome.seq, outcome.op, outcome.index, packet);
  accept(header, packet, outcome.op, outcome.index, outcome.op_done);
}

void Host::accept(const Header& header, const Packet& packet, uint32_t op, uint64_t index, bool op_done) {
  TreeStream& stream = streams_[header.tree];
  const Seq seq = extend_seq(stream.floor, header.seq);
  Running* r = running(op);
  if (world_.trace) world_.log("%2u  accepts chunk %llu of op %#x", endpoint_, static_cast<unsigned long long>(index), op);
  if (!r || r->state != State::kRunning || index >= r->shape.chunks()) {
    world_.fail("delivery", "rank %u: tree %u chunk %#x accepted for op %#x, which is not running", rank_, header.tree,
                header.seq, op);
    return;
  }
  if (r->accepted[index]) {
    world_.fail("once", "rank %u: chunk %llu of op %#x accepted twice", rank_, static_cast<unsigned long long>(index), op);
    return;
  }
  if (seq < stream.floor || seq >= stream.next || stream.answered[seq & (stream.answered.size() - 1)]) {
    world_.fail("once", "rank %u: tree %u chunk %#x accepted though it was answered or never sent", rank_, header.tree,
                header.seq);
    return;
  }
  if (!check_answer(header, packet, *r, index)) return;
  job_.check_place(*this, header.tree, seq, op, index, header.root_us);
  job_.check_exam(*this, header.tree, seq);
  r->accepted[index] = true;
  ++r->accepted_count;
  mark_answered(stream, seq);
  if (packet.payload_bytes > 0 && r->shape.takes(rank_, index)) {
    std::memcpy(r->out() + r->shape.offset_bytes(index), packet.payload, packet.payload_bytes);
  }
  if (op_done != (r->accepted_count == r->shape.chunks())) {
    world_.fail("completion", "rank %u: op %#x reported %s with %llu of %llu chunks", rank_, op,
                op_done ? "done" : "not done", static_cast<unsigned long long>(r->accepted_count),
                static_cast<unsigned long long>(r->shape.chunks()));
    return;
  }
  if (op_done) finish(op, State::kDone);
}

void Host::on_refusal(const Header& header) {
  const Worker::Outcome outcome = worker_.on_refused(header.tree, header.seq, header.op, world_.now);
  if (outcome.fresh()) streams_[header.tree].heard_at = world_.now;
  switch (outcome.verdict) {
    case Worker::Verdict::kOld: world_.marks.hit(Mark::kOld); return;
    case Worker::Verdict::kHeldBack: world_.marks.hit(Mark::kHeldBack); return;
    case Worker::Verdict::kForeign: world_.marks.hit(Mark::kForeignNumber); return;
    case Worker::Verdict::kNews: world_.fail("verdict", "rank %u: a refusal brought news", rank_); return;
    case Worker::Verdict::kFailed: break;
  }
  TreeStream& stream = streams_[header.tree];
  const Seq seq = extend_seq(stream.floor, header.seq);
  const uint32_t index = outcome.op - job_.plan().first_op;
  if (world_.trace) {
    world_.log("%2u  refused: tree %u chunk %#x, op %#x%s", endpoint_, header.tree, header.seq, outcome.op,
               outcome.op_done ? " fails" : "");
  }
  if (index >= job_.plan().calls.size() || job_.plan().calls[index].same()) {
    world_.fail("agreement", "rank %u: op %#x is refused though all ranks agree on it", rank_, outcome.op);
    return;
  }
  for (Seq s = seq; s < seq + job_.plan().window; ++s) mark_answered(stream, s);
  stream.next = seq + job_.plan().window;
  Running* r = running(outcome.op);
  if (!outcome.op_done) {
    world_.marks.hit(Mark::kPlaceMoved);
    if (r && r->state == State::kRunning)
      world_.fail("agreement", "rank %u: op %#x was refused and still runs", rank_, outcome.op);
    return;
  }
  world_.marks.hit(Mark::kOpFailed);
  if (!r || r->state != State::kRunning) {
    world_.fail("agreement", "rank %u: op %#x fails though it is not running", rank_, outcome.op);
    return;
  }
  finish(outcome.op, State::kFailed);
}

void Host::mark_answered(TreeStream& stream, Seq seq) {
  const size_t mask = stream.answered.size() - 1;
  if (seq < stream.floor || seq - stream.floor > mask) {
    world_.fail("window", "rank %u: chunk %#llx is answered outside of the window", rank_,
                static_cast<unsigned long long>(seq));
    return;
  }
  stream.answered[seq & mask] = true;
  while (stream.answered[stream.floor & mask]) stream.answered[stream.floor++ & mask] = false;
}

void Host::submit_due() {
  const JobPlan& plan = job_.plan();
  while (ops_.size() < plan.calls.size() && world_.now >= next_submit_ && ops_.size() - finished_ < plan.in_flight_max &&
         (frozen() ? ops_.size() - finished_ < kOperationsMax : worker_.can_submit())) {
    const bool last = ops_.size() + 1 == plan.calls.size();
    if (last && !last_released_) return;
    submit_next();
    if (world_.failed()) return;
    Stream random(world_.plan.seed, Draw::kHost, endpoint_, ~ops_.size());
    next_submit_ = world_.now + static_cast<TimeNs>(random.below(static_cast<uint64_t>(plan.think_max) + 1));
  }
  if (ops_.size() < plan.calls.size() && next_submit_ > world_.now) wake_at(next_submit_);
}

void Host::submit_next() {
  const JobPlan& plan = job_.plan();
  const OpPlan& op = plan.calls[ops_.size()].of(rank_);
  const uint32_t want = plan.first_op + static_cast<uint32_t>(ops_.size());
  Running& r = ops_.emplace_back(plan, op);
  r.contract = fingerprint(op.contract(), want);
  r.input.resize(r.shape.total_bytes());
  fill_input(op, r.shape, rank_, r.input.data());
  if (!op.in_place) r.output.assign(r.shape.total_bytes(), kUntouchedByte);
  r.accepted.assign(r.shape.chunks(), false);
  const uint32_t number = frozen() ? want : worker_.submit(r.shape.chunks(), op.contract());
  if (world_.trace) {
    world_.log("%2u  submits op %#x: %s, %llu chunks", endpoint_, number, describe(op.contract()).c_str(),
               static_cast<unsigned long long>(r.shape.chunks()));
  }
  if (number != want) world_.fail("numbers", "rank %u: op %#x was numbered %#x", rank_, want, number);
  if (op.in_place) world_.marks.hit(Mark::kInPlace);
  if (number == 0 && ops_.size() > 1) world_.marks.hit(Mark::kOp32Wrap);
  if ((number & 0xffff) == 0 && ops_.size() > 1) world_.marks.hit(Mark::kOp16Wrap);
  if (r.shape.chunks() > 0) return;
  world_.marks.hit(Mark::kNothingToDo);
  finish(number, State::kDone);
}

void Host::send_due() {
  Worker::Chunk chunk;
  uint64_t sends = 0;
  while (!world_.failed() && worker_.poll_send(world_.now, &chunk)) {
    if (++sends > sends_max(job_.plan())) {
      world_.fail("storm", "rank %u: has been asked to send %llu packets at once", rank_,
                  static_cast<unsigned long long>(sends));
      return;
    }
    if (check_chunk(chunk)) send(chunk);
  }
}

void Host::send(const Worker::Chunk& chunk) {
  const JobPlan& plan = job_.plan();
  TreeStream& stream = streams_[chunk.tree];
  Running& r = *running(chunk.op);
  const bool gives = r.shape.gives(rank_, chunk.index) && !chunk.void_payload;
  Header header{.type = PacketType::kData,
                .tree = static_cast<uint8_t>(chunk.tree),
                .child = stream.child,
                .job = plan.handle,
                .seq = wire_seq(chunk.seq),
                .contract = r.contract,
                .op = static_cast<uint16_t>(chunk.op),
                .contributors = gives,
                .elems = r.shape.elems(chunk.index),
                .elem_type = r.op->type,
                .reduce_op = r.op->op};
  if (!gives) header.flags |= kFlagEmpty;
  if (chunk.repeat) {
    header.flags |= kFlagRepeat;
    world_.marks.hit(Mark::kResent);
  }
  if (chunk.void_payload) world_.marks.hit(Mark::kVoidSent);
  if (!chunk.repeat && stream.floor + 1 == stream.next) stream.heard_at = world_.now;  // from now on it asks
  TxPacket tx;
  if (gives) {
    tx.payload = r.input.data() + r.shape.offset_bytes(chunk.index);
    tx.payload_bytes = r.shape.bytes(chunk.index);
    if (path_ != Path::kCopied) {
      // A place is written once per chunk; a repeat finds it as it was left.
      std::byte* place = stream.arena.data() + (chunk.seq & (plan.window - 1)) * plan.payload_bytes;
      if (!chunk.repeat) std::memcpy(place, tx.payload, tx.payload_bytes);
      tx.payload = place;
    }
  }
  if (world_.healed()) ++sent_healed_;
  encode(header, tx.payload, tx.payload_bytes, path_ == Path::kCopied, tx.head);
  network_.send(endpoint_, stream.leaf, tx);
}

void Host::finish(uint32_t number, State state) {
  Running& r = *running(number);
  r.state = state;
  ++finished_;
  const CallPlan& call = job_.plan().calls[number - job_.plan().first_op];
  if (state == State::kDone && !call.same() && r.shape.chunks() > 0) {
    world_.fail("agreement", "rank %u: op %#x succeeds though the ranks do not agree on it", rank_, number);
    return;
  }
  if (state == State::kDone) {
    if (call.same()) check_output(number);
  } else {
    check_untouched(number);
  }
  // The caller does with its buffers what it wants.
  std::fill(r.input.begin(), r.input.end(), kGone);
  std::fill(r.output.begin(), r.output.end(), kGone);
  job_.on_op_finished(number - job_.plan().first_op);
  if (finished_ < job_.plan().calls.size()) return;
  done_ = true;
}

std::string Host::progress() const {
  char text[256];
  std::snprintf(text, sizeof text, "rank %u: %u of %zu calls ended, %zu made", rank_, finished_, job_.plan().calls.size(),
                ops_.size());
  std::string line = text;
  for (size_t t = 0; t < streams_.size(); ++t) {
    std::snprintf(text, sizeof text, "; tree %zu waits for %#llx, next %#llx, window %u", t,
                  static_cast<unsigned long long>(streams_[t].floor), static_cast<unsigned long long>(streams_[t].next),
                  worker_.window_chunks(static_cast<uint32_t>(t)));
    line += text;
  }
  return line;
}

}  // namespace gatun::sim
