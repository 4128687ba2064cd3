// DpdkSender: makes frames of packets.
//
// Where the device copies at once (af_packet, vhost), a payload goes out from where it lies. Elsewhere it is copied once,
// and when the same payload goes to several peers in one burst (a result), they all refer to that one copy. UDP checksums
// are made where IPv6 wants them, by the device if it can; one over a payload for several peers is added up once.
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

  // One frame; null: no memory now, it is all in frames that the device has not sent yet. again: the next packet has the
  // same payload.
  rte_mbuf* build(const TxPacket& packet, const FrameHeader& header, bool again);

 private:
  explicit DpdkSender(const DpdkPortFacts& facts) : facts_(facts) {}
  rte_mbuf* build_whole(const TxPacket& packet, const FrameHeader& header);
  rte_mbuf* build_chain(const TxPacket& packet, const FrameHeader& header);
  rte_mbuf* refer_to(const TxPacket& packet);
  void write_headers(const TxPacket& packet, const FrameHeader& header, std::byte* out, rte_mbuf* mbuf);
  void forget_shared();

  const DpdkPortFacts facts_;
  rte_mempool* small_ = nullptr;  // headers, and references to payloads
  rte_mempool* whole_ = nullptr;  // null where payloads are never copied
  rte_mbuf* shared_ = nullptr;    // the copy of the payload that the latest packets had in common
  const std::byte* summed_ = nullptr;
  uint64_t payload_sum_ = 0;  // of the payload at summed_
};

}  // namespace gatun
