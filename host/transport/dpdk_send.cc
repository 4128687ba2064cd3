#include "host/transport/dpdk_send.h"

#include <rte_mbuf.h>

#include <cstring>
#include <new>

#include "host/transport/dpdk_eal.h"

namespace gatun {
namespace {

constexpr uint32_t kInlineBytes = 256;  // a payload up to this is copied: cheaper than a second mbuf
constexpr uint32_t kSmallBytes = kFrameHeaderBytesMax + static_cast<uint32_t>(kHeaderBytes) + kInlineBytes;

void nothing(void*, void*) {}

}  // namespace

Result<std::unique_ptr<DpdkSender>> DpdkSender::make(const DpdkPortFacts& facts) {
  std::unique_ptr<DpdkSender> sender(new DpdkSender(facts));
  const uint32_t held = facts.copies_at_once ? 0 : facts.send_frames;  // by the device
  const uint32_t count = held + 4 * kBurst;
  const uint32_t frame_bytes = facts.mtu + kEthernetBytes;
  sender->small_ = make_mbuf_pool(2 * count + kSpares, kSmallBytes, sizeof(rte_mbuf_ext_shared_info), SOCKET_ID_ANY);
  if (!facts.copies_at_once) sender->whole_ = make_mbuf_pool(count, frame_bytes, 0, SOCKET_ID_ANY);
  if (sender->small_ == nullptr || (!facts.copies_at_once && sender->whole_ == nullptr)) {
    return Status(Code::kSystem, "no memory for " + std::to_string(count) + " frames of DPDK" + eal_says() +
                                     "; add huge pages, or more memory with eal=-m eal=MEGABYTES in the setting device");
  }
  return sender;
}

DpdkSender::~DpdkSender() {
  begin();
  rte_pktmbuf_free_bulk(spare_.data(), spare_count_);
  rte_mempool_free(small_);
  rte_mempool_free(whole_);
}

// Many at a time: each time the pool is touched costs as much as a small packet.
rte_mbuf* DpdkSender::take_small() {
  if (spare_count_ == 0) {
    if (rte_pktmbuf_alloc_bulk(small_, spare_.data(), kSpares) != 0) return rte_pktmbuf_alloc(small_);
    spare_count_ = kSpares;
  }
  return spare_[--spare_count_];
}

rte_mbuf* DpdkSender::build(const TxPacket& packet, const FrameHeader& header, bool again) {
  const bool in_one =
      packet.payload_bytes <= kInlineBytes || !(facts_.copies_at_once || (facts_.chains && (again || shared_)));
  rte_mbuf* mbuf = in_one ? build_whole(packet, header) : build_chain(packet, header);
  if (!again) begin();
  return mbuf;
}

rte_mbuf* DpdkSender::build_whole(const TxPacket& packet, const FrameHeader& header) {
  rte_mbuf* mbuf = packet.payload_bytes <= kInlineBytes ? take_small() : rte_pktmbuf_alloc(whole_);
  if (mbuf == nullptr) return nullptr;
  const uint32_t heads = header.size() + static_cast<uint32_t>(kHeaderBytes);
  auto* out = reinterpret_cast<std::byte*>(rte_pktmbuf_append(mbuf, static_cast<uint16_t>(heads + packet.payload_bytes)));
  write_headers(packet, header, out, mbuf);
  if (packet.payload_bytes > 0) std::memcpy(out + heads, packet.payload, packet.payload_bytes);
  return mbuf;
}

rte_mbuf* DpdkSender::build_chain(const TxPacket& packet, const FrameHeader& header) {
  rte_mbuf* mbuf = take_small();
  if (shared_ == nullptr) shared_ = facts_.copies_at_once ? reference_to(packet) : copy_of(packet);
  if (mbuf == nullptr || shared_ == nullptr) {
    rte_pktmbuf_free(mbuf);
    return nullptr;
  }
  const uint32_t heads = header.size() + static_cast<uint32_t>(kHeaderBytes);
  auto* out = reinterpret_cast<std::byte*>(rte_pktmbuf_append(mbuf, static_cast<uint16_t>(heads)));
  write_headers(packet, header, out, mbuf);
  rte_mbuf_refcnt_update(shared_, 1);
  mbuf->next = shared_;
  mbuf->nb_segs = 2;
  mbuf->pkt_len += packet.payload_bytes;
  return mbuf;
}

rte_mbuf* DpdkSender::reference_to(const TxPacket& packet) {
  rte_mbuf* mbuf = take_small();
  if (mbuf == nullptr) return nullptr;
  const auto bytes = static_cast<uint16_t>(packet.payload_bytes);
  auto* info = new (rte_mbuf_to_priv(mbuf)) rte_mbuf_ext_shared_info{};
  info->free_cb = nothing;
  rte_mbuf_ext_refcnt_set(info, 1);
  rte_pktmbuf_attach_extbuf(mbuf, const_cast<std::byte*>(packet.payload), RTE_BAD_IOVA, bytes, info);
  mbuf->data_off = 0;
  rte_pktmbuf_append(mbuf, bytes);
  return mbuf;
}

rte_mbuf* DpdkSender::copy_of(const TxPacket& packet) {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(whole_);
  if (mbuf == nullptr) return nullptr;
  std::memcpy(rte_pktmbuf_append(mbuf, static_cast<uint16_t>(packet.payload_bytes)), packet.payload, packet.payload_bytes);
  return mbuf;
}

void DpdkSender::write_headers(const TxPacket& packet, const FrameHeader& header, std::byte* out, rte_mbuf* mbuf) {
  header.write(static_cast<uint32_t>(kHeaderBytes) + packet.payload_bytes, out);
  std::memcpy(out + header.size(), packet.head, kHeaderBytes);
  if (header.six() ? facts_.udp_checksum : facts_.ip4_checksum) {
    mbuf->l2_len = kEthernetBytes;
    mbuf->l3_len = header.six() ? kIp6Bytes : kIp4Bytes;
    mbuf->ol_flags |= RTE_MBUF_F_TX_UDP_CKSUM | (header.six() ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4);
    set_udp_checksum(out, header.six(), udp_checksum_for_device(out, header.six()));
    return;
  }
  if (!header.six()) return;  // IPv4 may go without
  if (summed_ != packet.payload || summed_ == nullptr) {
    payload_sum_ = checksum_add(0, {packet.payload, packet.payload_bytes});
    summed_ = packet.payload;
  }
  uint64_t sum = udp_checksum_start(out, true);
  sum = checksum_add(sum, {packet.head, kHeaderBytes});
  set_udp_checksum(out, true, checksum_fold(sum + payload_sum_));
}

void DpdkSender::begin() {
  rte_pktmbuf_free(shared_);
  shared_ = nullptr;
  summed_ = nullptr;
}

}  // namespace gatun
