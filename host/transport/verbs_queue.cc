#include "host/transport/verbs_queue.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gatun {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kInlineBytes = 64;  // a descriptor
// 67 ms, and 7 times more: a peer that is gone, or a port that is down, ends the pair after about half a second, and a
// peer that only stands still for a moment does not.
constexpr uint8_t kAckTimeout = 14;
constexpr uint8_t kRetries = 7;
constexpr uint8_t kRetriesForEver = 7;  // of a message for which the peer has no receive: it is slow, not gone
constexpr uint8_t kReceiverPause = 12;  // 0.64 ms until such a message is tried again
constexpr uint32_t kFirstPacketMask = 0xffffff;

uint64_t page_align(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint32_t bytes_of(ibv_mtu mtu) {
  return 128u << mtu;
}

}  // namespace

Result<VerbsMemory> VerbsMemory::make(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kSystem, "cannot map " + std::to_string(bytes >> 20) + " MiB for RDMA: " + std::strerror(errno) +
                                     "; lower the window, the payload size or the number of trees");
  }
  ::madvise(memory, bytes, MADV_DONTFORK);
  VerbsMemory made;
  made.bytes_ = {static_cast<std::byte*>(memory), bytes};
  return made;
}

VerbsMemory::~VerbsMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

VerbsQueue::Layout VerbsQueue::layout_of(const ShmShape& shape, bool daemon) {
  const uint64_t ring = page_align(uint64_t{shape.slots} * sizeof(ShmSlot));
  const uint64_t cells = page_align(uint64_t{kShmCells} * shape.payload_bytes);
  Layout layout{};
  layout.progress_in = sizeof(ShmRingControl);
  layout.slots_out = kPageBytes;
  layout.slots_in = layout.slots_out + ring;
  layout.cells_out = layout.slots_in + ring;
  layout.cells_in = layout.cells_out + cells;
  layout.tx = layout.cells_in + cells;
  layout.results = layout.tx + page_align(shape.tx_bytes);
  layout.end = layout.results + (daemon ? 0 : page_align(shape.result_bytes));
  return layout;
}

Result<std::unique_ptr<VerbsQueue>> VerbsQueue::make(const Config& config) {
  std::unique_ptr<VerbsQueue> queue(new VerbsQueue(config));
  Result<VerbsAddress> address = config.device->find(config.from);
  if (!address.ok()) return address.status();
  queue->address_ = address.value();
  queue->layout_ = layout_of(config.shape, config.daemon);
  Result<VerbsMemory> memory = VerbsMemory::make(queue->layout_.end);
  if (!memory.ok()) return memory.status();
  queue->memory_ = std::move(memory.value());
  Result<VerbsKey> key =
      config.device->make_key(config.domain, queue->memory_.bytes(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                              "lower the settings window and payload");
  if (!key.ok()) return key.status();
  queue->key_ = std::move(key.value());
  queue->first_packet_ = static_cast<uint32_t>(random_u64()) & kFirstPacketMask;
  if (Status status = queue->make_pair(); !status.ok()) return status;
  queue->lay_out();
  return queue;
}

// Every packet is two writes, and as many as the ring holds may wait for the peer's card at once.
Status VerbsQueue::make_pair() {
  const OpenDevice& device = *config_.device;
  const auto most = static_cast<uint32_t>(device.limits().max_qp_wr);
  const auto least = static_cast<uint32_t>(2 * config_.shape.tx_bytes / config_.shape.payload_bytes) + kBatch;
  depth_ = std::min(2 * config_.shape.slots + kBatch, most);
  if (depth_ < least) {
    return Status(Code::kUnsupported, device.name() + " takes " + std::to_string(most) + " requests in one queue, and " +
                                          std::to_string(least) + " are needed; lower the window or the number of trees");
  }
  sent_.reset(::ibv_create_cq(device.context(), static_cast<int>(depth_), nullptr, nullptr, 0));
  if (sent_ == nullptr) return verbs_error(device, "make a completion queue", errno);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = sent_.get();
  wanted.recv_cq = config_.inbox->completions();
  wanted.srq = config_.inbox->receives();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = depth_;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_inline_data = kInlineBytes;
  pair_.reset(::ibv_create_qp(config_.domain, &wanted));
  if (pair_ == nullptr) {
    wanted.cap.max_inline_data = 0;
    pair_.reset(::ibv_create_qp(config_.domain, &wanted));
  }
  if (pair_ == nullptr) return verbs_error(device, "make a reliable queue pair", errno);
  inline_bytes_ = wanted.cap.max_inline_data;
  return move_to(IBV_QPS_INIT, {});
}

void VerbsQueue::lay_out() {
  std::byte* base = memory_.bytes().data();
  const auto ring = [&](uint64_t progress, uint64_t slots, uint64_t cells) {
    ShmRing made;
    made.control = reinterpret_cast<ShmRingControl*>(base + progress);
    made.slots = reinterpret_cast<ShmSlot*>(base + slots);
    made.mask = config_.shape.slots - 1;
    made.cells = base + cells;
    made.cell_bytes = config_.shape.payload_bytes;
    return made;
  };
  out_ = ShmProducer(ring(layout_.progress_out, layout_.slots_out, layout_.cells_out));
  in_ = ShmConsumer(ring(layout_.progress_in, layout_.slots_in, layout_.cells_in));
  progress_in_ = base + layout_.progress_in;
  tx_arena_ = {base + layout_.tx, config_.shape.tx_bytes};
  results_ = config_.daemon ? config_.results : std::span(base + layout_.results, config_.shape.result_bytes);
}

VerbsCard VerbsQueue::card() const {
  return {.gid = config_.from,
          .peer_gid = config_.to,
          .queue_pair = pair_->qp_num,
          .first_packet = first_packet_,
          .mtu_bytes = bytes_of(address_.mtu),
          .memory = reinterpret_cast<uint64_t>(memory_.bytes().data()),
          .key = key_->rkey,
          .shape = config_.shape};
}

Status VerbsQueue::connect(const VerbsCard& peer) {
  if (peer.shape != config_.shape) {
    return Status(Code::kRefused,
                  "the peer's RDMA memory is not of the agreed shape; gatund and this library may be of "
                  "different versions");
  }
  peer_ = peer;
  if (Status status = move_to(IBV_QPS_RTR, peer); !status.ok()) return status;
  return move_to(IBV_QPS_RTS, peer);
}

// The three steps of a reliable connection (InfiniBand specification, volume 1, 10.3.1).
Status VerbsQueue::move_to(ibv_qp_state state, const VerbsCard& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  int mask = IBV_QP_STATE;
  if (state == IBV_QPS_INIT) {
    attr.port_num = address_.port;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  } else if (state == IBV_QPS_RTR) {
    attr.path_mtu = address_.mtu;
    while (attr.path_mtu > IBV_MTU_256 && bytes_of(attr.path_mtu) > peer.mtu_bytes) {
      attr.path_mtu = static_cast<ibv_mtu>(attr.path_mtu - 1);
    }
    attr.dest_qp_num = peer.queue_pair;
    attr.rq_psn = peer.first_packet & kFirstPacketMask;
    attr.min_rnr_timer = kReceiverPause;
    attr.ah_attr.is_global = 1;
    std::memcpy(attr.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    attr.ah_attr.grh.sgid_index = address_.index;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.port_num = address_.port;
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  } else {
    attr.timeout = kAckTimeout;
    attr.retry_cnt = kRetries;
    attr.rnr_retry = kRetriesForEver;
    attr.sq_psn = first_packet_;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  const int error = ::ibv_modify_qp(pair_.get(), &attr, mask);
  if (error == 0) return {};
  const std::string step = state == IBV_QPS_INIT ? "prepare a queue pair" : "connect a queue pair to " + gid_text(peer.gid);
  return Status(Code::kSystem, std::string(verbs_error(*config_.device, step, error).message()) +
                                   "; its addresses: " + config_.device->gid_table());
}

bool VerbsQueue::push(const TxPacket& packet) {
  if (batched_ + 2 > kBatch) flush();
  if (!has_room(batched_ + 2)) return false;
  Lent* lent = packet.seen_at ? lent_at(packet.payload, packet.payload_bytes) : nullptr;
  const std::byte* seen_at = lent ? packet.seen_at : packet.payload;
  ShmPlace place;
  if (packet.payload_bytes > 0) place.kind = ShmPlaceKind::kCell;
  const std::span<std::byte> arena = config_.daemon ? results_ : tx_arena_;
  if (packet.payload_bytes > 0 && holds(arena, seen_at, packet.payload_bytes)) {
    place = {config_.daemon ? ShmPlaceKind::kResults : ShmPlaceKind::kTxArena,
             static_cast<uint64_t>(seen_at - arena.data())};
  }
  if (!out_.push(packet, place)) return false;
  const ShmSlot& slot = out_.last();
  write_payload(slot.descriptor, packet.payload, lent);
  const auto* from = reinterpret_cast<const std::byte*>(&slot);
  const uint64_t offset = static_cast<uint64_t>(from - (memory_.bytes().data() + layout_.slots_out));
  write(from, sizeof slot, key_->lkey, layout_.slots_in + offset, true);
  return true;
}

void VerbsQueue::write_payload(const ShmDescriptor& descriptor, const std::byte* payload, Lent* lent) {
  if (descriptor.payload_bytes == 0) return;
  const std::byte* base = memory_.bytes().data();
  const uint64_t offset = descriptor.offset;
  switch (static_cast<ShmPlaceKind>(descriptor.kind)) {
    case ShmPlaceKind::kTxArena:
      write(payload, descriptor.payload_bytes, lent ? lent->key->lkey : key_->lkey, layout_.tx + offset, false);
      if (lent) lent->last_work = posted_ + batched_;
      return;
    case ShmPlaceKind::kResults:
      return write(payload, descriptor.payload_bytes, config_.results_key, layout_.results + offset, false);
    case ShmPlaceKind::kCell: {
      const uint64_t cell = offset * config_.shape.payload_bytes;
      return write(base + layout_.cells_out + cell, descriptor.payload_bytes, key_->lkey, layout_.cells_in + cell, false);
    }
    case ShmPlaceKind::kNone: return;
  }
}

void VerbsQueue::write(const std::byte* from, uint32_t bytes, uint32_t key, uint64_t to, bool announce, bool ask) {
  ibv_sge& piece = pieces_[batched_];
  ibv_send_wr& work = works_[batched_++];
  piece = {.addr = reinterpret_cast<uint64_t>(from), .length = bytes, .lkey = key};
  work = {};
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = announce ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  work.wr.rdma.remote_addr = peer_.memory + to;
  work.wr.rdma.rkey = peer_.key;
  if (bytes <= inline_bytes_) work.send_flags = IBV_SEND_INLINE;
  // A completion now and then says how much of the queue is free again.
  const uint64_t number = posted_ + batched_;
  work.wr_id = number;
  if (ask || number - asked_ >= std::max(1u, depth_ / 4)) {
    asked_ = number;
    work.send_flags |= IBV_SEND_SIGNALED;
  }
}

void VerbsQueue::flush() {
  if (batched_ == 0) return;
  for (uint32_t i = 0; i < batched_; ++i) works_[i].next = i + 1 < batched_ ? &works_[i + 1] : nullptr;
  ibv_send_wr* refused = nullptr;
  const int error = ::ibv_post_send(pair_.get(), works_.data(), &refused);
  posted_ += std::exchange(batched_, 0);
  if (error != 0) fail(std::string("its network card refuses requests: ") + std::strerror(error));
}

bool VerbsQueue::has_room(uint32_t works) {
  if (posted_ + works - completed_ <= depth_) return true;
  reap();
  return posted_ + works - completed_ <= depth_;
}

void VerbsQueue::reap() {
  ibv_wc done[16];
  int count = 0;
  do {
    count = ::ibv_poll_cq(sent_.get(), 16, done);
    for (int i = 0; i < count; ++i) {
      completed_ = std::max(completed_, done[i].wr_id);
      if (done[i].status == IBV_WC_RETRY_EXC_ERR) {
        fail("no acknowledgement for half a second: it, a port or a cable between is down, or frames of RoCE's MTU of " +
             std::to_string(std::min(bytes_of(address_.mtu), peer_.mtu_bytes)) + " bytes do not pass");
      } else if (done[i].status != IBV_WC_SUCCESS) {
        fail(std::string("the network card says: ") + ::ibv_wc_status_str(done[i].status));
      }
    }
  } while (count == 16);
}

void VerbsQueue::fail(const std::string& why) {
  if (!failure_.ok()) return;
  const std::string said = config_.device->events();
  failure_ = Status(Code::kSwitchLost, "RDMA from " + gid_text(config_.from) + " (" + config_.device->name() + ") to " +
                                           gid_text(config_.to) + ": " + why + (said.empty() ? "" : "; " + said));
}

const Status& VerbsQueue::failure() {
  reap();
  return failure_;
}

bool VerbsQueue::pop(ShmDescriptor* descriptor) {
  if (!in_.peek(descriptor)) return false;
  in_.advance();
  ++taken_;
  taken_cells_ += descriptor->kind == static_cast<uint32_t>(ShmPlaceKind::kCell);
  return true;
}

const std::byte* VerbsQueue::resolve(const ShmDescriptor& descriptor) const {
  const uint64_t offset = descriptor.offset;
  const uint32_t bytes = descriptor.payload_bytes;
  if (bytes > config_.shape.payload_bytes) return nullptr;
  const auto kind = static_cast<ShmPlaceKind>(descriptor.kind);
  if (kind == ShmPlaceKind::kCell) return in_.cell(offset);
  std::span<std::byte> arena;
  if (kind == ShmPlaceKind::kTxArena && config_.daemon) arena = tx_arena_;
  if (kind == ShmPlaceKind::kResults && !config_.daemon) arena = results_;
  if (offset > arena.size() || bytes > arena.size() - offset) return nullptr;
  return arena.data() + offset;  // null for no arena
}

// A quarter of the ring, or half of the cells, may be free here without the other end knowing: it is never stopped by that.
void VerbsQueue::tell_progress() {
  in_.consume();
  if (!failure_.ok() || (taken_ - told_ < config_.shape.slots / 4 && taken_cells_ < kShmCells / 2)) return;
  if (batched_ == kBatch) flush();
  if (!has_room(batched_ + 1)) return;
  told_ = taken_;
  taken_cells_ = 0;
  write(progress_in_, sizeof(uint32_t), key_->lkey, layout_.progress_out, false);
  flush();
}

}  // namespace gatun
