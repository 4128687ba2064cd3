// DpdkSender: makes frames of packets.
//
// Where the device copies at once (af_packet, vhost), a payload goes out from where it lies. Elsewhere it is copied once.
// When the same payload goes to several peers in one burst (a result), it is the one second segment of all their frames. UDP
// checksums are made where IPv6 wants them, by the device if it can; one over a payload for several peers is added up once.
//
// One thread calls.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "host/transport/dpdk_port.h"

namespace gatun {

class DpdkSender {
 public:
  static Result<std::unique_ptr<DpdkSender>> make(const DpdkPortFacts& facts);
  ~DpdkSender();

  // Before each burst: what payloads the packets before had in common is forgotten, since the device may not have taken
  // them, and the caller may begin anywhere.
  void begin();
  // One frame; null: no memory now, it is all in frames that the device has not sent yet. again: the next packet has the
  // same payload.
  rte_mbuf* build(const TxPacket& packet, const FrameHeader& header, bool again);

 private:
  static constexpr uint32_t kSpares = 2 * kBurst;

  explicit DpdkSender(const DpdkPortFacts& facts) : facts_(facts) {}
  rte_mbuf* take_small();  // null: there is none
  rte_mbuf* build_whole(const TxPacket& packet, const FrameHeader& header);
  rte_mbuf* build_chain(const TxPacket& packet, const FrameHeader& header);
  rte_mbuf* reference_to(const TxPacket& packet);
  rte_mbuf* copy_of(const TxPacket& packet);
  void write_headers(const TxPacket& packet, const FrameHeader& header, std::byte* out, rte_mbuf* mbuf);

  const DpdkPortFacts facts_;
  rte_mempool* small_ = nullptr;          // headers, and references to payloads
  std::array<rte_mbuf*, kSpares> spare_;  // of small_, the first spare_count_
  uint32_t spare_count_ = 0;
  rte_mempool* whole_ = nullptr;  // null where payloads are never copied
  rte_mbuf* shared_ = nullptr;    // the payload that the latest packets have in common
  const std::byte* summed_ = nullptr;
  uint64_t payload_sum_ = 0;  // of the payload at summed_
};

}  // namespace gatun
