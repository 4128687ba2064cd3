#include "experiments/net/workers.h"

#include <algorithm>

#include "protocols/contract.h"

namespace gatun::net {
namespace {

constexpr uint32_t kElemBytes = 4;  // f32
constexpr TimeNs kTimeoutFactorMax = 10;
constexpr uint32_t kWindowInitial = 16;  // chunks a tree, as the host library begins

}  // namespace

Workers::Workers(Network& network, const Config& config)
    : network_(network),
      config_(config),
      payload_bytes_((config.mtu - kUdpBytes - static_cast<uint32_t>(kHeaderBytes)) / kElemBytes * kElemBytes) {}

Worker::Config Workers::worker_config() const {
  Worker::Config worker{.trees = config_.trees,
                        .window = config_.window,
                        .window_initial = std::min(config_.window, kWindowInitial),
                        .rto_initial = config_.rto_min,
                        .rto_min = config_.rto_min,
                        .rto_max = kTimeoutFactorMax * config_.rto_min};
  if (!config_.congestion_control) {
    worker.reliable = true;  // then neither loss nor timeout changes the window, and the timeout is rto_max
    worker.rto_max = config_.rto_min;
  }
  return worker;
}

void Workers::add(uint32_t job, uint32_t host, std::vector<Trees::Seat> seats) {
  ranks_.push_back(
      {.worker = Worker(worker_config()), .job = job, .nic = network_.topology().nic(host), .seats = std::move(seats)});
}

void Workers::all_reduce(uint32_t index, uint64_t bytes) {
  Rank& rank = ranks_[index];
  const uint64_t elems = std::max<uint64_t>(1, bytes / kElemBytes), elems_max = payload_bytes_ / kElemBytes;
  rank.chunks = (elems + elems_max - 1) / elems_max;
  rank.last_elems = static_cast<uint32_t>(elems - (rank.chunks - 1) * elems_max);
  const Contract contract{.count = elems};
  rank.contract = fingerprint(contract, rank.worker.submit(rank.chunks, contract));
  send_due(index);
}

bool Workers::on_packet(uint32_t packet) {
  const Packet& p = network_.packet(packet);
  const uint32_t index = p.target;
  const Header header = p.header;
  const bool congested = config_.congestion_control && (p.congested || header.flags & kFlagCongested);
  network_.free(packet);
  Worker& worker = ranks_[index].worker;
  const TimeNs now = to_ns(network_.now());
  if (header.type == PacketType::kStatus) {
    worker.on_status(header.tree, header.seq, now);
    send_due(index);
    return false;
  }
  const Worker::Outcome outcome = worker.on_result(header.tree, header.seq, header.op, congested, now);
  send_due(index);
  return outcome.op_done;
}

void Workers::on_timer(uint32_t index) {
  if (ranks_[index].wakes_at > network_.now()) return;  // an earlier event has done it and armed another
  ranks_[index].wakes_at = INT64_MAX;
  send_due(index);
}

void Workers::send_due(uint32_t index) {
  Rank& rank = ranks_[index];
  const TimeNs now = to_ns(network_.now());
  Worker::Chunk chunk;
  while (rank.worker.poll_send(now, &chunk)) send(rank, chunk);
  arm(index);
}

void Workers::send(Rank& rank, const Worker::Chunk& chunk) {
  const Trees::Seat& seat = rank.seats[chunk.tree];
  const uint32_t elems = chunk.index + 1 == rank.chunks ? rank.last_elems : payload_bytes_ / kElemBytes;
  const uint32_t made = network_.make();
  Packet& packet = network_.packet(made);
  packet.kind = PacketKind::kTree;
  packet.target = seat.node;
  packet.wire_bytes = elems * kElemBytes + static_cast<uint32_t>(kHeaderBytes) + kUdpBytes + kFrameBytes;
  packet.header = {.type = PacketType::kData,
                   .flags = chunk.repeat ? kFlagRepeat : uint8_t{0},
                   .tree = static_cast<uint8_t>(chunk.tree),
                   .child = seat.child,
                   .job = rank.job,
                   .seq = wire_seq(chunk.seq),
                   .contract = rank.contract,
                   .op = static_cast<uint16_t>(chunk.op),
                   .contributors = 1,
                   .elems = elems,
                   .elem_type = Type::kF32};
  network_.send(rank.nic, made);
}

// Nothing new is due in less than the shortest timeout, so a timer that ends within it serves as well.
void Workers::arm(uint32_t index) {
  Rank& rank = ranks_[index];
  if (rank.wakes_at <= network_.now() + config_.rto_min * kPsPerNs) return;
  const TimeNs due = rank.worker.poll_timer();
  if (due == kNever || due * kPsPerNs >= rank.wakes_at) return;
  rank.wakes_at = std::max(due * kPsPerNs, network_.now());
  network_.at(rank.wakes_at, EventKind::kRank, index);
}

uint64_t Workers::resent() const {
  uint64_t resent = 0;
  for (const Rank& rank : ranks_) resent += rank.worker.resent();
  return resent;
}

}  // namespace gatun::net
