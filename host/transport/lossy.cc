#include "host/transport/lossy.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gatun {

namespace {
constexpr BufferId kOwnBuffer = 0x80000000u;  // marks our copies among the inner transport's buffers
}  // namespace

Result<std::unique_ptr<Lossy>> Lossy::make(Transport* inner, const LossyOptions& options) {
  std::unique_ptr<Lossy> lossy(new Lossy(inner, options));
  for (Way* way : {&lossy->send_, &lossy->receive_}) {
    auto pool = BufferPool::make(options.copies, kHeaderBytes + inner->caps().payload_bytes_max);
    if (!pool.ok()) return pool.status();
    way->pool = std::move(pool.value());
  }
  return lossy;
}

Lossy::Lossy(Transport* inner, const LossyOptions& options)
    : inner_(inner), options_(options), may_corrupt_(!inner->caps().reliable) {
  GATUN_CHECK(options.send.sum() <= 1 && options.receive.sum() <= 1 && options.hold_packets_max > 0);
  send_.rates = options.send;
  send_.random = 2 * options.seed;
  receive_.rates = options.receive;
  receive_.random = 2 * options.seed + 1;
  held_sends_.reserve(options.copies);
  held_receives_.reserve(options.copies);
}

// splitmix64
uint64_t Lossy::draw(Way* way) const {
  uint64_t z = way->random += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Lossy::Fault Lossy::roll(Way* way) const {
  double at = static_cast<double>(draw(way) >> 11) * 0x1p-53;
  const auto hit = [&](double rate) {
    at -= rate;
    return at < 0;
  };
  if (hit(way->rates.drop)) return Fault::kDrop;
  if (hit(way->rates.duplicate)) return Fault::kDuplicate;
  if (hit(way->rates.hold)) return Fault::kHold;
  if (hit(way->rates.corrupt)) return may_corrupt_ ? Fault::kCorrupt : Fault::kNone;
  return Fault::kNone;
}

void Lossy::flip_bit(Way* way, std::byte* head, std::byte* payload, uint32_t payload_bytes) const {
  const uint64_t bit = draw(way) % (8 * (kHeaderBytes + uint64_t{payload_bytes}));
  std::byte* byte = bit / 8 < kHeaderBytes ? head + bit / 8 : payload + (bit / 8 - kHeaderBytes);
  *byte ^= std::byte{1} << (bit % 8);
}

int Lossy::send(std::span<const TxPacket> packets) {
  if (send_.rates.sum() == 0) return inner_->send(packets);
  int taken = 0;
  for (const TxPacket& packet : packets) {
    send_held();
    const uint64_t before = send_.random;
    bool sent = true;
    switch (roll(&send_)) {
      case Fault::kNone: sent = send_one(packet); break;
      case Fault::kDrop: ++faults_.dropped; break;
      case Fault::kDuplicate:
        sent = send_one(packet);
        if (sent && send_one(packet)) ++faults_.duplicated;
        break;
      case Fault::kHold: sent = send_copy(packet, true) || send_one(packet); break;
      case Fault::kCorrupt: sent = send_copy(packet, false) || send_one(packet); break;
    }
    if (!sent) {  // no room: when it is offered again it must meet the same fate
      send_.random = before;
      break;
    }
    ++send_.packets;
    ++taken;
  }
  return taken;
}

bool Lossy::send_one(const TxPacket& packet) { return inner_->send({&packet, 1}) == 1; }

void Lossy::send_held() {
  for (size_t i = 0; i < held_sends_.size();) {
    if (held_sends_[i].due > send_.packets) {
      ++i;
      continue;
    }
    send_one(held_sends_[i].packet);
    send_.pool->give(held_sends_[i].buffer);
    held_sends_.erase(held_sends_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// Sends a copy of the packet, later or at once with one bit wrong. False: nothing was done.
bool Lossy::send_copy(const TxPacket& packet, bool hold) {
  if (packet.payload_bytes > inner_->caps().payload_bytes_max) return false;
  const BufferId buffer = send_.pool->take();
  if (buffer == kNoBuffer) return false;
  std::byte* payload = send_.pool->data(buffer);
  if (packet.payload_bytes > 0) std::memcpy(payload, packet.payload, packet.payload_bytes);
  TxPacket copy = packet;
  copy.payload = payload;
  if (hold) {
    held_sends_.push_back({copy, buffer, send_.packets + 1 + draw(&send_) % options_.hold_packets_max});
    ++faults_.held;
    return true;
  }
  flip_bit(&send_, copy.head, payload, copy.payload_bytes);
  const bool sent = send_one(copy);
  send_.pool->give(buffer);
  faults_.corrupted += sent;
  return sent;
}

TransportCaps Lossy::caps() const {
  TransportCaps caps = inner_->caps();
  caps.intact &= !may_corrupt_ || (options_.send.corrupt == 0 && options_.receive.corrupt == 0);
  return caps;
}

int Lossy::receive(std::span<RxPacket> out) {
  if (receive_.rates.sum() == 0) return inner_->receive(out);
  out = out.first(std::min<size_t>(out.size(), kBurst));
  int count = take_held(out);
  const int arrived = inner_->receive(out.subspan(count));
  const auto fresh = out.subspan(count, arrived);
  for (RxPacket& packet : fresh) {
    if (keep(&packet)) out[count++] = packet;
    ++receive_.packets;
  }
  return count;
}

int Lossy::take_held(std::span<RxPacket> out) {
  size_t count = 0;
  for (size_t i = 0; i < held_receives_.size() && count < out.size();) {
    if (held_receives_[i].due > receive_.packets) {
      ++i;
      continue;
    }
    out[count++] = held_receives_[i].packet;
    held_receives_.erase(held_receives_.begin() + static_cast<ptrdiff_t>(i));
  }
  return static_cast<int>(count);
}

// Does the packet go to the caller now, as it is or changed?
bool Lossy::keep(RxPacket* packet) {
  const Fault fault = roll(&receive_);
  if (fault == Fault::kNone) return true;
  const BufferId buffer = packet->buffer;
  RxPacket copy;
  if (fault == Fault::kDrop) {
    ++faults_.dropped;
  } else if (!copy_received(*packet, &copy)) {
    return true;
  } else if (fault == Fault::kCorrupt) {
    std::byte* head = receive_.pool->data(copy.buffer & ~kOwnBuffer);
    flip_bit(&receive_, head, head + kHeaderBytes, copy.payload_bytes);
    ++faults_.corrupted;
  } else {
    held_receives_.push_back({copy, receive_.packets + 1 + draw(&receive_) % options_.hold_packets_max});
    ++(fault == Fault::kHold ? faults_.held : faults_.duplicated);
    if (fault == Fault::kDuplicate) return true;
  }
  inner_->release({&buffer, 1});
  *packet = copy;
  return fault == Fault::kCorrupt;
}

// False when no buffer is free, or the source could no longer be adopted when the copy comes out.
bool Lossy::copy_received(const RxPacket& packet, RxPacket* copy) {
  if (packet.peer == kNoPeer) return false;
  const BufferId id = receive_.pool->take();
  if (id == kNoBuffer) return false;
  receive_.pool->set_references(id, 1);
  std::byte* bytes = receive_.pool->data(id);
  std::memcpy(bytes, packet.head, kHeaderBytes);
  if (packet.payload_bytes > 0) std::memcpy(bytes + kHeaderBytes, packet.payload, packet.payload_bytes);
  *copy = packet;
  copy->head = bytes;
  copy->payload = bytes + kHeaderBytes;
  copy->buffer = id | kOwnBuffer;
  return true;
}

void Lossy::release(std::span<const BufferId> buffers) {
  for (const BufferId buffer : buffers) {
    if (buffer != kNoBuffer && (buffer & kOwnBuffer) != 0) {
      receive_.pool->release(buffer & ~kOwnBuffer);
    } else {
      inner_->release({&buffer, 1});
    }
  }
}

bool Lossy::prepare_wait() {
  const bool quiet = inner_->prepare_wait();
  return quiet && std::none_of(held_receives_.begin(), held_receives_.end(),
                               [&](const HeldReceive& held) { return held.due <= receive_.packets; });
}

}  // namespace gatun
