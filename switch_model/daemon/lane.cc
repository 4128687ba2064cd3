#include "switch_model/daemon/lane.h"

#include "host/base/os.h"

namespace gatun {
namespace {

// The node's numbers of peers and buffers carry the transport's index in the top byte.
constexpr uint32_t kIndexShift = 24;
constexpr uint32_t kIdMask = (1u << kIndexShift) - 1;
constexpr uint32_t tag(uint32_t transport, uint32_t id) { return id == kNoPeer ? id : transport << kIndexShift | id; }

constexpr int kSendTries = 200;  // of a socket that has no room: it drains at the rate of the interface
constexpr TimeNs kSleepMax = 1 * kSecond;

}  // namespace

Lane::Lane(const Options& options) : options_(options), node_(options.trees_max) {}

Result<std::unique_ptr<Lane>> Lane::make(const Options& options) {
  std::unique_ptr<Lane> lane(new Lane(options));
  if (Status status = lane->open(); !status.ok()) return status;
  return lane;
}

Status Lane::open() {
  auto waiter = Waiter::make();
  if (!waiter.ok()) return waiter.status();
  waiter_ = std::move(waiter.value());
  for (SocketAddress address : options_.udp) {
    if (udp_port_ != 0 && address.port() == 0) {
      auto same_port = SocketAddress::parse(address.ip(), udp_port_);
      if (!same_port.ok()) return same_port.status();
      address = same_port.value();
    }
    UdpOptions udp;
    udp.buffers = options_.udp_buffers;
    udp.busy_poll_us = options_.busy_poll_us;
    auto hub = UdpHub::make(address, udp);
    if (!hub.ok()) return hub.status();
    if (udp_port_ == 0) {
      udp_port_ = hub.value()->local().port();
      udp_caps_ = hub.value()->caps();
    }
    udp_caps_.payload_bytes_max = std::min(udp_caps_.payload_bytes_max, hub.value()->caps().payload_bytes_max);
    udp_caps_.receive_bytes = std::min(udp_caps_.receive_bytes, hub.value()->caps().receive_bytes);
    transports_.push_back(std::move(hub.value()));
  }
  if (options_.shm) {
    auto hub = ShmHub::make({});
    if (!hub.ok()) return hub.status();
    shm_hub_ = hub.value().get();
    transports_.push_back(std::move(hub.value()));
  }
  GATUN_CHECK(transports_.size() <= std::size(released_));
  for (auto& released : released_) released.reserve(Outbox::kReleases);
  for (const auto& transport : transports_) {
    if (Status status = waiter_->add(transport.get()); !status.ok()) return status;
  }
  return {};
}

Lane::~Lane() {
  quit_ = true;
  if (waiter_) waiter_->wake();
  if (thread_.joinable()) thread_.join();
}

void Lane::start() {
  thread_ = std::thread([this] { loop(); });
}

void Lane::loop() {
  Backoff backoff(options_.busy_poll);
  while (!quit_.load(std::memory_order_relaxed)) {
    if (pending_.load(std::memory_order_acquire)) run_pending();
    bool busy = false;
    for (uint32_t i = 0; i < transports_.size(); ++i) busy |= serve(i);
    if (busy) {
      backoff.reset();
    } else if (backoff.idle()) {
      waiter_->wait(kSleepMax);
      backoff.reset();
    }
  }
  if (pending_) run_pending();
}

bool Lane::serve(uint32_t index) {
  Transport& transport = *transports_[index];
  std::array<RxPacket, kBurst> packets;
  const int count = transport.receive(packets);
  if (count == 0) return false;
  const TimeNs now = now_ns();
  for (int i = 0; i < count; ++i) {
    RxPacket& packet = packets[static_cast<size_t>(i)];
    if (packet.peer == kNoPeer && node_.accepts_probe(packet)) packet.peer = transport.adopt(packet);
    packet.peer = tag(index, packet.peer);
    if (packet.buffer != kNoBuffer) packet.buffer = tag(index, packet.buffer);
    if (outbox_.full()) flush();
    node_.on_packet(packet, now, &outbox_);
  }
  flush();
  return true;
}

void Lane::flush() {
  // Packets to one transport that follow each other go in one burst.
  std::array<TxPacket, kBurst> burst;
  size_t count = 0;
  uint32_t transport = 0;
  for (const TxPacket& packet : outbox_.sends()) {
    const uint32_t index = packet.peer >> kIndexShift;
    if (count == burst.size() || (count > 0 && index != transport)) {
      send(transport, {burst.data(), count});
      count = 0;
    }
    transport = index;
    burst[count] = packet;
    burst[count++].peer = packet.peer & kIdMask;
  }
  if (count > 0) send(transport, {burst.data(), count});

  for (const BufferId buffer : outbox_.releases()) released_[buffer >> kIndexShift].push_back(buffer & kIdMask);
  for (uint32_t i = 0; i < transports_.size(); ++i) {
    if (released_[i].empty()) continue;
    transports_[i]->release(released_[i]);
    released_[i].clear();
  }
  outbox_.clear();
}

void Lane::send(uint32_t transport, std::span<TxPacket> packets) {
  for (int tries = 0; !packets.empty() && tries < kSendTries; ++tries) {
    const int sent = transports_[transport]->send(packets);
    packets = packets.subspan(static_cast<size_t>(sent));
    if (!packets.empty()) ::sched_yield();
  }
  // What found no room is lost, as a switch loses it: its worker asks again.
}

Status Lane::admit(LaneJob* job) {
  Status status;
  run([&] {
    for (size_t i = 0; i < job->trees.size() && status.ok(); ++i) status = node_.admit(job->trees[i], job->arenas[i]);
    for (std::unique_ptr<ShmPort>& port : job->ports) {
      if (!status.ok()) break;
      const PeerId peer = shm_hub_->attach(std::move(port));
      if (peer == kNoPeer) {
        status = {Code::kRefused, "the switch has no place for another worker's shared memory"};
      } else {
        job->attached.push_back(peer);
      }
    }
    job->ports.clear();
  });
  if (!status.ok()) remove(job);
  return status;
}

void Lane::remove(LaneJob* job) {
  run([&] {
    for (const TreeSpec& spec : job->trees) {
      for (size_t child = 0; child < spec.child_ranks.size(); ++child) {
        const PeerId peer = node_.child_peer(spec.job, spec.tree, static_cast<uint8_t>(child));
        if (peer == kNoPeer || transports_[peer >> kIndexShift].get() == shm_hub_) continue;
        transports_[peer >> kIndexShift]->forget(peer & kIdMask);
      }
      while (node_.remove(spec.job, spec.tree, &outbox_)) flush();
      flush();
    }
    for (const PeerId peer : job->attached) job->ports.push_back(shm_hub_->detach(peer));
    job->attached.clear();
  });
  job->ports.clear();  // unmapped here, not on the lane's thread
}

NodeStats Lane::node_stats() {
  NodeStats stats;
  run([&] { stats = node_.stats(); });
  return stats;
}

std::vector<TransportStats> Lane::transport_stats() {
  std::vector<TransportStats> stats;
  run([&] {
    for (const auto& transport : transports_) stats.push_back(transport->stats());
  });
  return stats;
}

void Lane::run(std::function<void()> command) {
  std::unique_lock lock(mutex_);
  command_ = std::move(command);
  pending_.store(true, std::memory_order_release);
  waiter_->wake();
  done_.wait(lock, [this] { return !command_; });
}

void Lane::run_pending() {
  std::lock_guard lock(mutex_);
  pending_.store(false, std::memory_order_relaxed);
  if (!command_) return;
  command_();
  command_ = nullptr;
  done_.notify_all();
}

}  // namespace gatun
