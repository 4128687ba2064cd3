#include "host/transport/verbs_hub.h"

#include <algorithm>

namespace gatun {
namespace {

constexpr uint32_t kReceives = 8192;  // of a hub, for all its links; a sender that finds none tries on
constexpr uint32_t kLinkBuffers = 2 * kBurst;

// The packet that a message of the queue announced.
bool take(VerbsQueue& queue, BufferPool& pool, std::byte* head, RxPacket* packet, TransportStats* stats) {
  ShmDescriptor descriptor;
  if (!queue.pop(&descriptor)) {
    ++stats->dropped_invalid;
    return false;
  }
  return accept_descriptor(queue, descriptor, pool, head, packet, stats);
}

}  // namespace

Result<std::shared_ptr<QueueGroup>> QueueGroup::make(std::shared_ptr<OpenDevice> device, std::span<std::byte> results) {
  auto group = std::make_shared<QueueGroup>();
  Result<VerbsDomain> domain = device->make_domain();
  if (!domain.ok()) return domain.status();
  Result<VerbsKey> key = device->make_key(domain->get(), results, 0, "lower the settings window and payload");
  if (!key.ok()) return key.status();
  group->device_ = std::move(device);
  group->domain_ = std::move(domain.value());
  group->results_ = results;
  group->key_ = std::move(key.value());
  return group;
}

Result<std::unique_ptr<VerbsHub>> QueueHub::make(std::shared_ptr<OpenDevice> device, const VerbsHubOptions& options) {
  std::unique_ptr<QueueHub> hub(new QueueHub);
  Result<std::unique_ptr<VerbsInbox>> inbox = VerbsInbox::make(device, kReceives);
  if (!inbox.ok()) return inbox.status();
  auto pool = BufferPool::make(options.buffers, options.payload_bytes_max + kHeaderBytes);
  if (!pool.ok()) return pool.status();
  hub->options_ = options;
  hub->device_ = std::move(device);
  hub->inbox_ = std::move(inbox.value());
  hub->pool_ = std::move(pool.value());
  hub->ports_.resize(options.links_max);
  hub->peers_.reserve(options.links_max);
  hub->touched_.reserve(options.links_max);
  hub->is_touched_.resize(options.links_max);
  hub->heads_ = std::make_unique<RingHeads>();
  return std::unique_ptr<VerbsHub>(std::move(hub));
}

Result<std::shared_ptr<VerbsGroup>> QueueHub::make_group(std::span<std::byte> results) {
  Result<std::shared_ptr<QueueGroup>> group = QueueGroup::make(device_, results);
  if (!group.ok()) return group.status();
  return std::shared_ptr<VerbsGroup>(std::move(group.value()));
}

Result<std::unique_ptr<VerbsPort>> QueueHub::make_port(const VerbsCard& worker, std::shared_ptr<VerbsGroup> group) {
  auto own = std::static_pointer_cast<QueueGroup>(std::move(group));
  Result<std::unique_ptr<VerbsQueue>> queue = VerbsQueue::make({.device = device_,
                                                                .inbox = inbox_.get(),
                                                                .domain = own->domain(),
                                                                .shape = worker.shape,
                                                                .from = worker.peer_gid,
                                                                .to = worker.gid,
                                                                .daemon = true,
                                                                .results = own->results(),
                                                                .results_key = own->key()});
  if (!queue.ok()) return queue.status();
  if (Status status = queue.value()->connect(worker); !status.ok()) return status;
  return std::unique_ptr<VerbsPort>(new QueuePort(std::move(own), std::move(queue.value())));
}

PeerId QueueHub::attach(std::unique_ptr<VerbsPort> port) {
  std::unique_ptr<QueuePort> own(static_cast<QueuePort*>(port.release()));
  const auto place = std::find(ports_.begin(), ports_.end(), nullptr);
  if (place == ports_.end() || own->queue().shape().payload_bytes > options_.payload_bytes_max) return kNoPeer;
  const auto peer = static_cast<PeerId>(place - ports_.begin());
  peers_[own->queue().number()] = peer;
  *place = std::move(own);
  return peer;
}

std::unique_ptr<VerbsPort> QueueHub::detach(PeerId peer) {
  if (peer >= ports_.size() || ports_[peer] == nullptr) return nullptr;
  peers_.erase(ports_[peer]->queue().number());
  return std::move(ports_[peer]);
}

TransportCaps QueueHub::caps() const {
  return {.name = "verbs",
          .reliable = true,
          .intact = true,
          .payload_bytes_max = options_.payload_bytes_max,
          .cores = device_->cores()};
}

void QueueHub::touch(PeerId peer) {
  if (is_touched_[peer]) return;
  is_touched_[peer] = 1;
  touched_.push_back(peer);
}

int QueueHub::receive(std::span<RxPacket> out) {
  std::array<uint32_t, kBurst> numbers;
  const int messages = inbox_->poll(std::span(numbers).first(std::min<size_t>(out.size(), kBurst)));
  int count = 0;
  for (int i = 0; i < messages; ++i) {
    const auto found = peers_.find(numbers[static_cast<size_t>(i)]);
    if (found == peers_.end()) continue;  // detached
    RxPacket* packet = &out[static_cast<size_t>(count)];
    if (take(ports_[found->second]->queue(), *pool_, heads_->bytes[count], packet, &stats_)) {
      packet->peer = found->second;
      ++count;
    }
    touch(found->second);
  }
  for (const PeerId peer : touched_) {
    ports_[peer]->queue().tell_progress();
    is_touched_[peer] = 0;
  }
  touched_.clear();
  return count;
}

int QueueHub::send(std::span<const TxPacket> packets) {
  for (const TxPacket& packet : packets) {
    const bool known = packet.peer < ports_.size() && ports_[packet.peer] != nullptr;
    if (!known || !ports_[packet.peer]->queue().alive()) {
      ++stats_.dropped_send;
      continue;
    }
    const Push result = push_packet(ports_[packet.peer]->queue(), packet, &stats_);
    if (result == Push::kNoRoom) ++stats_.dropped_send;
    if (result == Push::kSent) touch(packet.peer);
  }
  for (const PeerId peer : touched_) {
    ports_[peer]->queue().flush();
    is_touched_[peer] = 0;
  }
  touched_.clear();
  return static_cast<int>(packets.size());
}

std::span<std::byte> QueueHub::arena(PeerId peer) {
  return peer < ports_.size() && ports_[peer] != nullptr ? ports_[peer]->queue().results() : std::span<std::byte>{};
}

Result<std::unique_ptr<VerbsLink>> QueueLink::make(std::shared_ptr<OpenDevice> device, const ShmShape& shape,
                                                   const VerbsGid& from, const VerbsGid& to) {
  std::unique_ptr<QueueLink> link(new QueueLink);
  Result<VerbsDomain> domain = device->make_domain();
  if (!domain.ok()) return domain.status();
  Result<std::unique_ptr<VerbsInbox>> inbox = VerbsInbox::make(device, shape.slots);
  if (!inbox.ok()) return inbox.status();
  link->device_ = device;
  link->domain_ = std::move(domain.value());
  link->inbox_ = std::move(inbox.value());
  Result<std::unique_ptr<VerbsQueue>> queue = VerbsQueue::make({.device = std::move(device),
                                                                .inbox = link->inbox_.get(),
                                                                .domain = link->domain_.get(),
                                                                .shape = shape,
                                                                .from = from,
                                                                .to = to});
  if (!queue.ok()) return queue.status();
  auto pool = BufferPool::make(kLinkBuffers, shape.payload_bytes + kHeaderBytes);
  if (!pool.ok()) return pool.status();
  link->queue_ = std::move(queue.value());
  link->pool_ = std::move(pool.value());
  link->heads_ = std::make_unique<RingHeads>();
  return std::unique_ptr<VerbsLink>(std::move(link));
}

Status QueueLink::connect(const std::string& card) {
  Result<VerbsCard> peer = VerbsCard::decode(card);
  return peer.ok() ? queue_->connect(peer.value()) : peer.status();
}

TransportCaps QueueLink::caps() const {
  return {.name = "verbs",
          .reliable = true,
          .intact = true,
          .payload_bytes_max = queue_->shape().payload_bytes,
          .cores = device_->cores(),
          .lends = queue_->lends()};
}

int QueueLink::receive(std::span<RxPacket> out) {
  std::array<uint32_t, kBurst> numbers;
  const int messages = inbox_->poll(std::span(numbers).first(std::min<size_t>(out.size(), kBurst)));
  int count = 0;
  for (int i = 0; i < messages; ++i) {
    RxPacket* packet = &out[static_cast<size_t>(count)];
    if (!take(*queue_, *pool_, heads_->bytes[count], packet, &stats_)) continue;
    packet->peer = 0;
    ++count;
  }
  if (messages > 0) queue_->tell_progress();
  return count;
}

int QueueLink::send(std::span<const TxPacket> packets) {
  int taken = 0;
  for (const TxPacket& packet : packets) {
    if (!queue_->alive()) {
      ++stats_.dropped_send;
    } else if (push_packet(*queue_, packet, &stats_) == Push::kNoRoom && queue_->alive()) {
      break;
    }
    ++taken;
  }
  queue_->flush();
  return taken;
}

}  // namespace gatun
