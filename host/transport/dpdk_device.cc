#include "host/transport/dpdk_device.h"

#include <netinet/in.h>
#include <rte_mbuf.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "host/transport/dpdk_eal.h"
#include "host/transport/dpdk_neighbour.h"
#include "host/transport/dpdk_transport.h"
#include "host/transport/waiter.h"

namespace gatun {
namespace {

constexpr uint32_t kSeatsMax = 200;
constexpr uint16_t kFirstFreePort = 49152;  // RFC 6335: nobody's by agreement
constexpr size_t kAskedMax = 256;
constexpr TimeNs kAskAgain = 100 * kMs;
constexpr int kSendPauses = 256, kSendYields = 64;  // for another transport to be done with the queue

}  // namespace

std::shared_ptr<DpdkDevice> DpdkDeviceShared::open(const DpdkSpec& spec, const DpdkDeviceOptions& options, Status* why) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<DpdkDeviceShared>> open_ones;
  static auto* kept = new std::vector<std::shared_ptr<DpdkDeviceShared>>;  // to the end of the process
  const std::lock_guard lock(mutex);
  std::weak_ptr<DpdkDeviceShared>& known = open_ones[spec.device];
  if (auto device = known.lock()) {
    if (device->spec_.addresses[0].ip == spec.addresses[0].ip) return device;
    *why = Status(Code::kInvalidArgument, "device " + spec.device + " is open in this process with the address " +
                                              device->spec_.addresses[0].ip.text() + "; give it the same one everywhere");
    return nullptr;
  }
  for (const auto& [name, other] : open_ones) {
    const auto device = other.lock();
    if (!device || spec.interface().empty() || device->spec_.interface() != spec.interface()) continue;
    *why = Status(Code::kInvalidArgument, "interface " + spec.interface() + " is open in this process as " + name +
                                              ", and the kernel would share its frames among the two; use that name");
    return nullptr;
  }
  const EalNeeds needs{.arguments = spec.eal,
                       .pci = spec.pci() ? spec.device : "",
                       .memory_bytes = spec.memory_bytes(options.buffers)};
  if (*why = start_eal(needs); !why->ok()) return nullptr;
  Result<std::unique_ptr<DpdkPort>> port = DpdkPort::open(spec, options);
  if (!port.ok()) {
    *why = port.status();
    return nullptr;
  }
  std::shared_ptr<DpdkDeviceShared> device(new DpdkDeviceShared(spec, options.buffers, std::move(port.value())));
  known = device;
  if (spec.driver() == "net_memif") kept->push_back(device);  // it could not be opened again
  return device;
}

DpdkDeviceShared::DpdkDeviceShared(const DpdkSpec& spec, uint32_t buffers, std::unique_ptr<DpdkPort> port)
    : spec_(spec),
      buffers_(buffers),
      port_(std::move(port)),
      mac_(spec.own_mac(port_->facts().device_mac)),
      inboxes_(1, nullptr) {
  asked_.reserve(kAskedMax);
}

std::string DpdkDeviceShared::text() const {
  std::string text = spec_.device + " (";
  for (const DpdkSpec::Address& address : spec_.addresses) text += address.ip.text() + ", ";
  return text + mac_.text() + ", MTU " + std::to_string(port_->facts().mtu) + ")";
}

// As socket(7) has it, half of what a packet is charged.
uint32_t DpdkDeviceShared::receive_bytes() const {
  return port_->facts().receive_frames * port_->facts().receive_queues * (af_packet_frame_bytes(port_->facts().mtu) / 2);
}

Result<std::unique_ptr<Transport>> DpdkDeviceShared::make_hub(uint16_t port, uint32_t buffers, uint32_t peers_max) {
  Result<std::unique_ptr<DpdkTransport>> hub = DpdkTransport::make(shared_from_this(), port, buffers, peers_max, false);
  if (!hub.ok()) return hub.status();
  return std::unique_ptr<Transport>(std::move(hub.value()));
}

Result<std::unique_ptr<Transport>> DpdkDeviceShared::make_link(const Endpoint& peer, uint32_t buffers, TimeNs deadline) {
  FrameAddress target{.port = peer.port()};
  target.ip.six = peer.family() == AF_INET6;
  const void* from = target.ip.six
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(peer.address())->sin6_addr)
                         : &reinterpret_cast<const sockaddr_in*>(peer.address())->sin_addr;
  std::memcpy(target.ip.bytes.data(), from, target.ip.size());
  Result<Mac> mac = find_mac(target.ip, deadline);
  if (!mac.ok()) return mac.status();
  target.mac = mac.value();
  Result<std::unique_ptr<DpdkTransport>> link = DpdkTransport::make(shared_from_this(), 0, buffers, 1, true);
  if (!link.ok()) return link.status();
  link.value()->set_peer(peer, target);
  return std::unique_ptr<Transport>(std::move(link.value()));
}

Result<DpdkDeviceShared::Seat> DpdkDeviceShared::attach(uint16_t port, DpdkInbox* inbox) {
  lock_receive();
  auto at = static_cast<size_t>(std::find(inboxes_.begin() + 1, inboxes_.end(), nullptr) - inboxes_.begin());
  // A port that was used lately may still get packets: begin anywhere.
  uint32_t candidate = port != 0 ? port : kFirstFreePort + random_u64() % (65536 - kFirstFreePort);
  for (uint32_t tries = kFirstFreePort; port == 0 && seat_of_[candidate] != 0 && tries < 65535; ++tries) {
    candidate = candidate == 65535 ? kFirstFreePort : candidate + 1;
  }
  const bool taken = seat_of_[candidate] != 0, full = at > kSeatsMax;
  if (!taken && !full) {
    if (at == inboxes_.size()) inboxes_.push_back(nullptr);
    inboxes_[at] = inbox;
    seat_of_[candidate] = static_cast<uint8_t>(at);
  }
  unlock_receive();
  if (taken) {
    return Status(Code::kSystem, "UDP port " + std::to_string(candidate) + " of device " + spec_.device +
                                     " is taken by another part of this process; choose another port");
  }
  if (full) {
    return Status(Code::kRefused, "device " + spec_.device + " has " + std::to_string(kSeatsMax) +
                                      " transports in this process already, and takes no more");
  }
  return Seat{.port = static_cast<uint16_t>(candidate), .queue = static_cast<uint32_t>(at - 1) % facts().send_queues};
}

void DpdkDeviceShared::detach(const Seat& seat, DpdkInbox* inbox) {
  lock_receive();
  inboxes_[seat_of_[seat.port]] = nullptr;
  seat_of_[seat.port] = 0;
  unlock_receive();
  DpdkInbox::Arrival arrival;
  while (inbox->take(&arrival)) rte_pktmbuf_free(arrival.mbuf);
}

void DpdkDeviceShared::lock_receive() {
  while (!try_lock_receive()) ::sched_yield();
}

void DpdkDeviceShared::poll() {
  if (!try_lock_receive()) return;
  for (uint32_t queue = 0; queue < facts().receive_queues; ++queue) {
    const uint32_t count = port_->receive(queue, burst_.data(), kBurst);
    for (uint32_t i = 0; i < count; ++i) deal(burst_[i]);
  }
  unlock_receive();
}

void DpdkDeviceShared::deal(rte_mbuf* mbuf) {
  DpdkInbox::Arrival arrival{.mbuf = mbuf};
  arrival.frame = parse_frame({rte_pktmbuf_mtod(mbuf, const std::byte*), rte_pktmbuf_data_len(mbuf)});
  const Frame& frame = arrival.frame;
  switch (frame.kind) {
    case FrameKind::kUdp:
      if (!is_ours(frame) || mbuf->nb_segs != 1) break;
      if (DpdkInbox* inbox = inboxes_[seat_of_[frame.target_port]]) {
        if (inbox->put(arrival)) mbuf = nullptr;
        inbox->wake();
      } else {
        unclaimed_.fetch_add(1, std::memory_order_relaxed);
      }
      break;
    case FrameKind::kNeighbour: on_neighbour(frame); break;
    case FrameKind::kCut:
      if (is_ours(frame)) count_cut();
      break;
    case FrameKind::kBad:
    case FrameKind::kOther: break;
  }
  rte_pktmbuf_free(mbuf);
}

bool DpdkDeviceShared::is_ours(const Frame& frame) const {
  const DpdkSpec::Address* own = spec_.address(frame.target_ip.six);
  return own != nullptr && own->ip == frame.target_ip && frame.target_mac == mac_;
}

void DpdkDeviceShared::on_neighbour(const Frame& frame) {
  for (Asked& asked : asked_) {
    if (asked.ip != frame.source_ip) continue;
    asked.mac = frame.source_mac;
    asked.known = true;
  }
  const DpdkSpec::Address* own = spec_.address(frame.target_ip.six);
  if (!frame.question || own == nullptr || own->ip != frame.target_ip) return;
  // From nowhere: somebody looks whether the address is free, and an answer to all is not ours to give.
  if (frame.source_ip == Ip{.six = true}) return;
  std::byte bytes[kNeighbourBytesMax];
  send_small(bytes, write_answer(mac_, own->ip, frame.source_mac, frame.source_ip, bytes));
}

void DpdkDeviceShared::send_question(const Ip& own, const Ip& wanted) {
  std::byte bytes[kNeighbourBytesMax];
  send_small(bytes, write_question(mac_, own, wanted, bytes));
}

// What cannot be sent now will be asked for again.
void DpdkDeviceShared::send_small(const std::byte* frame, uint32_t bytes) {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(port_->pool());
  if (mbuf == nullptr) return;
  std::memcpy(rte_pktmbuf_append(mbuf, static_cast<uint16_t>(bytes)), frame, bytes);
  if (send(0, &mbuf, 1) == 0) rte_pktmbuf_free(mbuf);
}

uint32_t DpdkDeviceShared::send(uint32_t queue, rte_mbuf** mbufs, uint32_t count) {
  std::atomic<bool>& busy = sending_[queue];
  for (int tries = 0; busy.exchange(true, std::memory_order_acquire); ++tries) {
    if (tries > kSendPauses + kSendYields) return 0;
    if (tries < kSendPauses) {
      Backoff::pause();
    } else {
      ::sched_yield();
    }
  }
  const uint32_t sent = port_->send(queue, mbufs, count);
  busy.store(false, std::memory_order_release);
  return sent;
}

Result<std::unique_ptr<DpdkSender>> DpdkDeviceShared::take_sender() {
  const std::lock_guard lock(senders_mutex_);
  if (senders_.empty()) return DpdkSender::make(facts());
  std::unique_ptr<DpdkSender> sender = std::move(senders_.back());
  senders_.pop_back();
  return sender;
}

void DpdkDeviceShared::give_sender(std::unique_ptr<DpdkSender> sender) {
  const std::lock_guard lock(senders_mutex_);
  senders_.push_back(std::move(sender));
}

Status DpdkDeviceShared::health() const {
  if (Status status = port_->health(); !status.ok()) return status;
  const uint64_t cut = cut_.load(std::memory_order_relaxed);
  if (cut_reported_.exchange(cut) == cut) return {};
  return Status(Code::kSystem, std::to_string(cut) + " frames came to device " + spec_.device +
                                   " cut, or longer than its MTU: a kernel on this machine sends several packets as one; on "
                                   "its interface, 'ethtool -K NAME tx off gso off tx-udp-segmentation off'");
}

// Asks until somebody answers. Whoever else uses the device may take the answer off it, so the table is looked at, too.
Result<Mac> DpdkDeviceShared::find_mac(const Ip& target, TimeNs deadline) {
  const DpdkSpec::Address* own = spec_.address(target.six);
  const Ip* hop = spec_.next_hop(target);
  if (hop == nullptr) {
    return Status(Code::kInvalidArgument, "device " + spec_.device + " has no way to " + target.text() +
                                              (own ? ": it is outside " + own->ip.text() + "/" +
                                                         std::to_string(own->prefix_bits) + "; add gateway=IP"
                                                   : ": add an address of its family") +
                                              " to the setting device");
  }
  const auto entry = [&] {
    const auto found = std::find_if(asked_.begin(), asked_.end(), [&](const Asked& asked) { return asked.ip == *hop; });
    if (found != asked_.end()) return &*found;
    if (asked_.size() == kAskedMax) asked_.erase(asked_.begin());
    return &asked_.emplace_back(Asked{.ip = *hop});
  };
  lock_receive();
  entry()->known = false;
  unlock_receive();
  for (TimeNs ask_at = 0; now_ns() < deadline;) {
    if (now_ns() >= ask_at) {
      send_question(own->ip, *hop);
      ask_at = now_ns() + kAskAgain;
    }
    poll();
    lock_receive();
    const Asked asked = *entry();
    unlock_receive();
    if (asked.known) return asked.mac;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const Status link = port_->health();
  return Status(Code::kTimeout,
                "nobody on the network of device " + spec_.device + " answers for " + hop->text() +
                    (link.ok() ? "; is that address right, and its owner running?" : std::string(": ") + link.message()));
}

}  // namespace gatun
