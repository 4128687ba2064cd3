#include <algorithm>
#include <bit>

#include "protocols/aggregator.h"
#include "protocols/membership.h"
#include "protocols/packet.h"

namespace gatun {
namespace {

// Without a setting. Over shm and RDMA a chunk costs a wake-up and no copy, so it is large; 16 of them stay in a
// second-level cache.
constexpr uint32_t kLinkPayloadBytes = 64 * 1024;
constexpr uint32_t kLinkWindow = 16;
constexpr uint32_t kUdpWindowMax = 256;
constexpr uint32_t kUdpInFlightBytes = 1 << 20;  // per tree and rank: 100 Gbit/s for 80 us
// Fewer chunks in flight than this leave the switch idle between a result and the next contribution.
constexpr uint32_t kWindowGood = 8;

constexpr uint32_t whole(uint32_t bytes) {
  return bytes & ~63u;
}  // elements of every type stay whole

// What a UDP socket is charged for one unread packet (skb->truesize on Linux): up to 16 KiB the data lies in one
// power-of-two block together with the headers and the 320 bytes of skb_shared_info, beyond that in pages. An estimate: if
// it is too small, packets are lost and repeated, nothing worse.
constexpr uint32_t kernel_bytes(uint32_t payload_bytes) {
  const uint32_t bytes = payload_bytes + static_cast<uint32_t>(kHeaderBytes) + 48 + 16 + 320;
  return bytes <= 16384 ? std::bit_ceil(bytes) + 256 : (bytes + 4095) / 4096 * 4096 + 512;
}

// The most chunks in flight per tree such that nothing overflows: a lane of the switch holds those of all ranks on all its
// trees, unread in its socket or as contributions that wait for others; a rank's socket holds those of all trees.
uint32_t window_that_fits(const SwitchFacts& facts, const std::vector<control::Join>& members,
                          const std::vector<bool>& linked, uint32_t payload_bytes) {
  // A transport states half of what the kernel charges against, as socket(7) has it.
  const uint32_t charge = (kernel_bytes(payload_bytes) + 1) / 2;
  const uint32_t trees = members[0].trees;
  const uint32_t trees_of_lane = (trees + facts.lanes - 1) / facts.lanes;
  uint32_t udp_ranks = 0;
  uint64_t fits = kWindowMax;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (linked[rank]) continue;
    ++udp_ranks;
    const uint32_t bytes = members[rank].receive_bytes;
    if (bytes != 0) fits = std::min<uint64_t>(fits, bytes / charge / trees);
  }
  const uint32_t streams = udp_ranks * trees_of_lane;
  if (facts.udp_receive_bytes != 0) fits = std::min<uint64_t>(fits, facts.udp_receive_bytes / charge / streams);
  if (facts.udp_buffers != 0) fits = std::min<uint64_t>(fits, facts.udp_buffers / streams);
  return static_cast<uint32_t>(fits);
}

}  // namespace

// Payload: the least that any path and any setting allows. On a path without a real packet size (loopback) the largest is
// not the best: eight packets of every rank must fit the receive buffers, else they are lost as soon as they are sent. So
// sizes that fill the kernel's blocks are tried from the largest down until the window that fits is large enough.
Result<Sizing> size_job(const SwitchFacts& facts, const std::vector<control::Join>& members,
                        const std::vector<bool>& linked) {
  const control::Join& first = members[0];  // settings agree on all ranks
  if (std::all_of(linked.begin(), linked.end(), [](bool is_linked) { return is_linked; })) {
    return Sizing{.window = first.window != 0 ? first.window : kLinkWindow,
                  .payload_bytes = first.payload_bytes != 0 ? first.payload_bytes : kLinkPayloadBytes};
  }
  uint32_t limit = facts.udp_payload_bytes;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (linked[rank]) continue;
    if (whole(members[rank].path_payload_bytes) == 0) {
      return Status(Code::kRefused, "the path of rank " + std::to_string(rank) + " (" + members[rank].host +
                                        ") carries only " + std::to_string(members[rank].path_payload_bytes) +
                                        " bytes per packet, at least 64 are needed");
    }
    limit = std::min(limit, members[rank].path_payload_bytes);
  }
  if (first.payload_bytes != 0) limit = std::min(limit, first.payload_bytes);
  limit = whole(limit);

  uint32_t best_payload = 0, best_window = 0;
  for (uint32_t block : {65536u, 32768u, 16384u, 8192u, 4096u, 2048u}) {
    const uint32_t payload = std::min(limit, whole(block - 448));  // 448: what kernel_bytes() adds
    const uint32_t window = window_that_fits(facts, members, linked, payload);
    if (window > best_window) {
      best_payload = payload;
      best_window = window;
    }
    // A payload that was set, or that a real link gives, is taken as it is.
    if (best_window >= kWindowGood || first.payload_bytes != 0) break;
  }
  const uint32_t in_flight = std::clamp(kUdpInFlightBytes / std::max(best_payload, 1u), kWindowGood, kUdpWindowMax);
  const uint32_t wanted = first.window != 0 ? first.window : in_flight;
  if (best_payload == 0) best_payload = std::min(limit, whole(2048 - 448));
  return Sizing{.window = std::bit_floor(std::clamp(best_window, 2u, wanted)), .payload_bytes = best_payload};
}

}  // namespace gatun
