// From a descriptor to a packet, for the transports whose peers write descriptors into rings (shm, verbs).
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "host/transport/buffer_pool.h"
#include "host/transport/shm_ring.h"
#include "host/transport/transport.h"

namespace gatun {

// Private copies of the heads of one burst.
struct RingHeads {
  alignas(64) std::byte bytes[kBurst][kHeaderBytes];
};

// The descriptor was copied out of the ring. False: it makes no sense, or no buffer is free.
template <typename Port>
bool accept_descriptor(const Port& port, const ShmDescriptor& descriptor, BufferPool& pool, std::byte* head,
                       RxPacket* packet, TransportStats* stats) {
  const std::byte* payload = nullptr;
  if (descriptor.payload_bytes > 0 || descriptor.kind != 0) {
    payload = port.resolve(descriptor);
    if (payload == nullptr) {
      ++stats->dropped_invalid;
      return false;
    }
  }
  BufferId buffer = kNoBuffer;
  if (descriptor.kind == static_cast<uint32_t>(ShmPlaceKind::kCell)) {
    buffer = pool.take();
    if (buffer == kNoBuffer) {
      ++stats->dropped_no_buffer;
      return false;
    }
    pool.set_references(buffer, 1);
    head = pool.data(buffer);
    std::memcpy(head + kHeaderBytes, payload, descriptor.payload_bytes);
    payload = head + kHeaderBytes;
  }
  std::memcpy(head, descriptor.head, kHeaderBytes);
  packet->head = head;
  packet->payload = payload;
  packet->payload_bytes = descriptor.payload_bytes;
  packet->buffer = buffer;
  packet->source = 0;
  packet->congested = false;
  packet->checksummed = false;
  ++stats->packets_received;
  stats->bytes_received += kHeaderBytes + descriptor.payload_bytes;
  return true;
}

inline void release_to(BufferPool& pool, std::span<const BufferId> buffers) {
  for (const BufferId buffer : buffers) {
    if (buffer != kNoBuffer) pool.release(buffer);
  }
}

enum class Push : uint8_t { kSent, kTooLarge, kNoRoom };

// Puts a packet into the peer's ring, unless it is larger than what was agreed. Of kNoRoom the caller makes what it likes.
template <typename Port>
Push push_packet(Port& port, const TxPacket& packet, TransportStats* stats) {
  if (packet.payload_bytes > port.shape().payload_bytes) {
    ++stats->dropped_send;
    ++stats->dropped_oversize;
    return Push::kTooLarge;
  }
  if (!port.push(packet)) return Push::kNoRoom;
  ++stats->packets_sent;
  stats->bytes_sent += kHeaderBytes + packet.payload_bytes;
  return Push::kSent;
}

}  // namespace gatun
