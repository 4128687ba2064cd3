#include "host/transport/shm.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace gatun {

namespace {

// Takes up to out.size() packets of one link; looks at no more descriptors than that, whatever they hold.
int take(ShmPort& port, PeerId peer, std::span<RxPacket> out, std::byte (*heads)[kHeaderBytes], BufferPool& pool,
         TransportStats* stats) {
  ShmDescriptor descriptor;
  int count = 0;
  size_t looked = 0;
  for (; looked < out.size() && port.in().peek(&descriptor); ++looked) {
    if (accept_descriptor(port, descriptor, pool, heads[count], &out[count], stats)) out[count++].peer = peer;
    port.in().advance();
  }
  if (looked > 0) port.in().consume();
  return count;
}

}  // namespace

Result<std::unique_ptr<ShmHub>> ShmHub::make(const ShmHubOptions& options) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return Status(Code::kSystem, std::string("cannot make the shm hub: ") + std::strerror(errno));
  auto pool = BufferPool::make(options.buffers, options.payload_bytes_max + kHeaderBytes);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<ShmHub>(new ShmHub(options, std::move(epoll), std::move(pool.value())));
}

ShmHub::ShmHub(const ShmHubOptions& options, Fd epoll, std::unique_ptr<BufferPool> pool)
    : options_(options),
      epoll_(std::move(epoll)),
      pool_(std::move(pool)),
      ports_(options.links_max),
      is_written_(options.links_max, 0),
      heads_(std::make_unique<RingHeads>()) {
  live_.reserve(options.links_max);
  written_.reserve(options.links_max);
}

ShmHub::~ShmHub() = default;

PeerId ShmHub::attach(std::unique_ptr<ShmPort> port) {
  const auto place = std::find(ports_.begin(), ports_.end(), nullptr);
  if (place == ports_.end() || port->shape().payload_bytes > options_.payload_bytes_max) return kNoPeer;
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLET;  // its eventfd is never read
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, port->doorbell_fd(), &wanted) != 0) return kNoPeer;
  const PeerId peer = static_cast<PeerId>(place - ports_.begin());
  *place = std::move(port);
  live_.push_back(peer);
  return peer;
}

std::unique_ptr<ShmPort> ShmHub::detach(PeerId peer) {
  if (peer >= ports_.size() || ports_[peer] == nullptr) return nullptr;
  // The worker has the eventfd open too, so that closing ours would not take it out.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ports_[peer]->doorbell_fd(), nullptr);
  std::erase(live_, peer);
  return std::move(ports_[peer]);
}

TransportCaps ShmHub::caps() const {
  return {.name = "shm", .reliable = true, .intact = true, .payload_bytes_max = options_.payload_bytes_max};
}

// Each link has its share of the burst, so that a busy one cannot keep the others waiting; the first differs each time.
int ShmHub::receive(std::span<RxPacket> out) {
  out = out.first(std::min<size_t>(out.size(), kBurst));
  if (live_.empty() || out.empty()) return 0;
  const size_t share = std::max<size_t>(4, out.size() / live_.size());
  size_t count = 0;
  if (++turn_ >= live_.size()) turn_ = 0;
  for (size_t i = 0, at = turn_; i < live_.size() && count < out.size(); ++i) {
    const PeerId peer = live_[at];
    const size_t room = std::min(share, out.size() - count);
    count += take(*ports_[peer], peer, out.subspan(count, room), heads_->bytes + count, *pool_, &stats_);
    if (++at == live_.size()) at = 0;
  }
  return static_cast<int>(count);
}

void ShmHub::release(std::span<const BufferId> buffers) { release_to(*pool_, buffers); }

int ShmHub::send(std::span<const TxPacket> packets) {
  for (const TxPacket& packet : packets) {
    if (packet.peer >= ports_.size() || ports_[packet.peer] == nullptr) {
      ++stats_.dropped_send;
      continue;
    }
    const Push result = push_packet(*ports_[packet.peer], packet, &stats_);
    if (result == Push::kNoRoom) ++stats_.dropped_send;
    if (result == Push::kSent && !is_written_[packet.peer]) {
      is_written_[packet.peer] = 1;
      written_.push_back(packet.peer);
    }
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const PeerId peer : written_) {
    ports_[peer]->ring_if_asleep();
    is_written_[peer] = 0;
  }
  written_.clear();
  return static_cast<int>(packets.size());
}

std::span<std::byte> ShmHub::arena(PeerId peer) {
  return peer < ports_.size() && ports_[peer] != nullptr ? ports_[peer]->results() : std::span<std::byte>{};
}

bool ShmHub::prepare_wait() {
  for (const PeerId peer : live_) ports_[peer]->in().sleep();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return std::all_of(live_.begin(), live_.end(), [&](PeerId peer) { return ports_[peer]->in().empty(); });
}

void ShmHub::finish_wait() {
  for (const PeerId peer : live_) ports_[peer]->in().awake();
}

Result<std::unique_ptr<ShmLink>> ShmLink::make(ShmTicket ticket) {
  auto port = ShmPort::open(std::move(ticket));
  if (!port.ok()) return port.status();
  auto pool = BufferPool::make(2 * kBurst, port.value()->shape().payload_bytes + kHeaderBytes);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<ShmLink>(new ShmLink(std::move(port.value()), std::move(pool.value())));
}

ShmLink::ShmLink(std::unique_ptr<ShmPort> port, std::unique_ptr<BufferPool> pool)
    : port_(std::move(port)), pool_(std::move(pool)), heads_(std::make_unique<RingHeads>()) {}

TransportCaps ShmLink::caps() const {
  return {.name = "shm", .reliable = true, .intact = true, .payload_bytes_max = port_->shape().payload_bytes};
}

int ShmLink::receive(std::span<RxPacket> out) {
  out = out.first(std::min<size_t>(out.size(), kBurst));
  return take(*port_, 0, out, heads_->bytes, *pool_, &stats_);
}

void ShmLink::release(std::span<const BufferId> buffers) { release_to(*pool_, buffers); }

int ShmLink::send(std::span<const TxPacket> packets) {
  int taken = 0;
  for (const TxPacket& packet : packets) {
    if (push_packet(*port_, packet, &stats_) == Push::kNoRoom) break;
    ++taken;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  port_->ring_if_asleep();
  return taken;
}

bool ShmLink::prepare_wait() {
  port_->in().sleep();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return port_->in().empty();
}

void ShmLink::finish_wait() {
  port_->in().awake();
  // Always: a byte that is left behind would hide later ones from an edge-triggered wait on kernels before 5.14.
  port_->drain_doorbell();
}

}  // namespace gatun
