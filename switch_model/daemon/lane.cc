#include "switch_model/daemon/lane.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "host/base/os.h"
#include "host/base/placement.h"

namespace gatun {
namespace {

constexpr uint32_t kIdBits = 24;  // of peers and buffers; the transport's number stands above
constexpr uint32_t kIdMask = (1u << kIdBits) - 1;

uint32_t tagged(uint32_t transport, uint32_t id) {
  return transport << kIdBits | id;
}

// A socket without room gets some within microseconds on any interface that moves; after this its packets are lost, which
// the protocol repairs.
constexpr int kSendTries = 20;
constexpr int kSendWaitMs = 1;

// Places and banks that a part of the observer's view may cost between two bursts: some microseconds, as a burst takes. The
// last tree may take it beyond that, by 8192 banks at most.
constexpr uint32_t kPublishSteps = 4096;

}  // namespace

Result<std::unique_ptr<Lane>> Lane::make(const Options& options, std::vector<std::unique_ptr<Transport>> hubs,
                                         std::unique_ptr<ShmHub> shm, std::vector<std::unique_ptr<VerbsHub>> verbs) {
  Result<std::unique_ptr<Waiter>> waiter = Waiter::make();
  if (!waiter.ok()) return waiter.status();
  std::unique_ptr<Lane> lane(
      new Lane(options, std::move(waiter.value()), std::move(hubs), std::move(shm), std::move(verbs)));
  for (Transport* transport : lane->transports_) {
    if (Status status = lane->waiter_->add(transport); !status.ok()) return status;
  }
  return lane;
}

Lane::Lane(const Options& options, std::unique_ptr<Waiter> waiter, std::vector<std::unique_ptr<Transport>> hubs,
           std::unique_ptr<ShmHub> shm, std::vector<std::unique_ptr<VerbsHub>> verbs)
    : options_(options),
      waiter_(std::move(waiter)),
      hubs_(std::move(hubs)),
      shm_(std::move(shm)),
      verbs_(std::move(verbs)),
      owners_(hubs_.size(), std::vector<uint32_t>(options.peers_max)),
      node_(options.trees_max, now_ns),
      outbox_(std::make_unique<Outbox>()) {
  for (const auto& hub : hubs_) transports_.push_back(hub.get());
  if (shm_) transports_.push_back(shm_.get());
  for (const auto& hub : verbs_) transports_.push_back(hub.get());
  GATUN_CHECK(!transports_.empty() && transports_.size() < 255);
  sends_.resize(transports_.size());
  releases_.resize(transports_.size());
}

Lane::~Lane() {
  stop();
}

Status Lane::start() {
  stop_ = false;
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return Status(Code::kSystem, std::string("cannot start a lane's thread: ") + error.what());
  }
  pthread_setname_np(thread_.native_handle(), ("gatund-lane" + std::to_string(options_.index)).c_str());
  return {};
}

void Lane::stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  waiter_->wake();
  thread_.join();
}

void Lane::call(const std::function<void()>& work) {
  if (!thread_.joinable()) return work();
  std::unique_lock lock(mutex_);
  work_ = &work;
  called_.store(true, std::memory_order_release);
  waiter_->wake();
  done_.wait(lock, [&] { return work_ == nullptr; });
}

// Near the first transport that has a device: two that lie apart cannot both be near.
void Lane::place() {
  for (const Transport* transport : transports_) {
    if (place_thread(transport->caps().cores)) return;
  }
}

void Lane::loop() {
  place();
  Backoff backoff(options_.busy_poll > 0);
  TimeNs worked = 0, turned = 0;  // turned: the latest turn began, and found packets; 0: it found none
  while (!stop_.load(std::memory_order_relaxed)) {
    if (called_.load(std::memory_order_acquire)) [[unlikely]] {
      const std::lock_guard lock(mutex_);
      called_.store(false, std::memory_order_relaxed);
      (*work_)();
      work_ = nullptr;
      done_.notify_one();
    }
    if (asked_.load(std::memory_order_acquire)) [[unlikely]]
      publish();
    const TimeNs now = now_ns();
    if (turned != 0) busy_ns_ += now - turned;
    int packets = 0;
    for (uint32_t transport = 0; transport < transports_.size(); ++transport) packets += receive(transport, now);
    flush();
    turned = packets > 0 ? now : 0;
    if (packets > 0) {
      backoff.reset();
      worked = now;
    } else if (asked_.load(std::memory_order_relaxed)) [[unlikely]] {
      continue;  // the view is not complete yet
    } else if (backoff.idle() || (options_.busy_poll > 0 && now - worked > options_.busy_poll)) {
      waiter_->wait(kNever);
      backoff.reset();
      worked = now_ns();
    }
  }
}

int Lane::receive(uint32_t transport, TimeNs now) {
  std::array<RxPacket, kBurst> packets;
  const int count = transports_[transport]->receive(packets);
  for (int i = 0; i < count; ++i) {
    RxPacket& packet = packets[static_cast<size_t>(i)];
    if (packet.peer == kNoPeer) [[unlikely]] {
      adopt(transport, &packet);
    } else {
      packet.peer = tagged(transport, packet.peer);
    }
    if (packet.buffer != kNoBuffer) {
      if (transport >= hubs_.size() && belongs_in_arena(packet)) [[unlikely]] {
        ++dropped_foreign_;
        transports_[transport]->release({&packet.buffer, 1});
        continue;
      }
      packet.buffer = tagged(transport, packet.buffer);
    }
    if (outbox_->full()) flush();
    node_.on_packet(packet, now, outbox_.get());
  }
  return count;
}

// A probe with a right token makes its source a peer. A job cannot take more places in the table than its ranks may need,
// however often a rank comes from another port.
void Lane::adopt(uint32_t transport, RxPacket* packet) {
  Header header;
  if (!node_.accepts_probe(*packet) ||
      decode(packet->head, packet->payload, packet->payload_bytes, packet->checksummed, &header) != Decode::kOk) {
    return;
  }
  const auto job = jobs_.find(header.job);
  if (job == jobs_.end() || job->second.adopted >= job->second.adopted_max) {
    ++dropped_foreign_;
    return;
  }
  const PeerId peer = transports_[transport]->adopt(*packet);
  if (peer == kNoPeer) return;
  owners_[transport][peer] = header.job;
  ++job->second.adopted;
  packet->peer = tagged(transport, peer);
}

// Over shm and verbs only probes come as copies. Contributions must lie in the sender's arena: held copies would use up the
// few buffers that all jobs share.
bool Lane::belongs_in_arena(const RxPacket& packet) const {
  Header header;
  return decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header) != Decode::kOk ||
         header.type != PacketType::kProbe;
}

// Sends before it releases: an answer may quote the packet that asked.
void Lane::flush() {
  const std::span<const TxPacket> sends = outbox_->sends();
  const std::span<const BufferId> releases = outbox_->releases();
  if (sends.empty() && releases.empty()) return;
  std::array<uint32_t, 256> counts{};
  for (const TxPacket& packet : sends) {
    const uint32_t transport = packet.peer >> kIdBits;
    if (transport >= transports_.size()) continue;  // kNoPeer
    TxPacket& own = sends_[transport][counts[transport]++];
    own = packet;
    own.peer &= kIdMask;
  }
  for (uint32_t transport = 0; transport < transports_.size(); ++transport) {
    send_to(transport, {sends_[transport].data(), counts[transport]});
  }
  counts.fill(0);
  for (const BufferId buffer : releases) {
    const uint32_t transport = buffer >> kIdBits;
    releases_[transport][counts[transport]++] = buffer & kIdMask;
  }
  for (uint32_t transport = 0; transport < transports_.size(); ++transport) {
    if (counts[transport] > 0) transports_[transport]->release({releases_[transport].data(), counts[transport]});
  }
  outbox_->clear();
}

void Lane::send_to(uint32_t transport, std::span<const TxPacket> packets) {
  for (int tries = 0; !packets.empty(); ++tries) {
    packets = packets.subspan(static_cast<size_t>(transports_[transport]->send(packets)));
    if (packets.empty()) return;
    if (tries == kSendTries) {
      dropped_unsent_ += packets.size();
      return;
    }
    pollfd room{.fd = transports_[transport]->wait_fd(), .events = POLLOUT, .revents = 0};
    ::poll(&room, 1, kSendWaitMs);
  }
}

Status Lane::admit(uint32_t job, std::vector<Tree> trees, std::vector<std::unique_ptr<ShmPort>> ports) {
  Status status;
  Removed removed;
  call([&] {
    try {
      status = admit_here(job, trees, &ports);
    } catch (const std::bad_alloc&) {
      status = Status(Code::kSystem, "the switch is out of memory");
    }
    if (!status.ok()) removed = remove_here(job);
  });
  return status;
}

Status Lane::admit_here(uint32_t handle, const std::vector<Tree>& trees, Ports* ports) {
  Job& job = jobs_[handle];
  if (asked_.load(std::memory_order_acquire)) publish_place_ = 0;  // trees move between places
  for (std::unique_ptr<ShmPort>& port : *ports) {
    const PeerId peer = shm_->attach(std::move(port));
    if (peer == kNoPeer) return Status(Code::kRefused, "the switch has no room for more shm links");
    job.links.push_back(peer);
  }
  for (const Tree& tree : trees) {
    if (Status status = node_.admit(tree.spec, tree.arena); !status.ok()) return status;
    job.trees.push_back(tree.spec.tree);
    job.adopted_max += 4 * static_cast<uint32_t>(tree.spec.child_ranks.size());
  }
  return {};
}

Status Lane::attach(uint32_t handle, size_t device, std::unique_ptr<VerbsPort> port) {
  PeerId peer = kNoPeer;
  call([&] {
    const auto job = jobs_.find(handle);
    if (job == jobs_.end()) return;
    job->second.queue_pairs.reserve(job->second.queue_pairs.size() + 1);
    peer = verbs_[device]->attach(std::move(port));
    if (peer != kNoPeer) job->second.queue_pairs.emplace_back(device, peer);
  });
  return peer != kNoPeer ? Status() : Status(Code::kRefused, "the switch has no room for more queue pairs");
}

void Lane::remove(uint32_t job) {
  Removed removed;
  call([&] { removed = remove_here(job); });
}

// The trees first, since they refer to packets in the links' memory.
Lane::Removed Lane::remove_here(uint32_t handle) {
  Removed removed;
  const auto found = jobs_.find(handle);
  if (found == jobs_.end()) return removed;
  if (asked_.load(std::memory_order_acquire)) publish_place_ = 0;
  for (const uint8_t tree : found->second.trees) {
    while (node_.remove(handle, tree, outbox_.get())) flush();
    flush();
  }
  for (const PeerId link : found->second.links) removed.ports.push_back(shm_->detach(link));
  for (const auto& [device, peer] : found->second.queue_pairs) {
    removed.queue_pairs.push_back(verbs_[device]->detach(peer));
  }
  for (uint32_t hub = 0; hub < hubs_.size(); ++hub) {
    for (PeerId peer = 0; peer < owners_[hub].size(); ++peer) {
      if (owners_[hub][peer] != handle) continue;
      owners_[hub][peer] = 0;
      hubs_[hub]->forget(peer);
    }
  }
  jobs_.erase(found);
  return removed;
}

Lane::Stats Lane::stats() {
  Stats stats;
  call([&] { stats = stats_here(); });
  return stats;
}

Lane::Stats Lane::stats_here() const {
  Stats stats{.node = node_.stats(),
              .trees = node_.trees(),
              .dropped_unsent = dropped_unsent_,
              .dropped_foreign = dropped_foreign_,
              .sleeps = waiter_->sleeps(),
              .busy_ns = busy_ns_};
  for (const auto& [handle, job] : jobs_) stats.links += static_cast<uint32_t>(job.links.size() + job.queue_pairs.size());
  for (const auto& owners : owners_) {
    stats.peers += static_cast<uint32_t>(std::count_if(owners.begin(), owners.end(), [](uint32_t job) { return job != 0; }));
  }
  for (const Transport* transport : transports_) stats.transport += transport->stats();
  return stats;
}

void Lane::ask(size_t trees) {
  view_.trees.resize(trees);
  publish_place_ = 0;
  asked_.store(true, std::memory_order_release);
  waiter_->wake();
}

void Lane::publish() {
  if (publish_place_ == 0) view_.count = 0;
  for (uint32_t steps = 0; steps < kPublishSteps; ++steps) {
    if (publish_place_ == node_.places() || view_.count == view_.trees.size()) {
      view_.complete = publish_place_ == node_.places();
      view_.stats = stats_here();
      asked_.store(false, std::memory_order_release);
      return;
    }
    const uint32_t banks = node_.view(publish_place_++, &view_.trees[view_.count]);
    view_.count += banks > 0;
    steps += banks;
  }
}

}  // namespace gatun
