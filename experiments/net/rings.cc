#include "experiments/net/rings.h"

#include <algorithm>

namespace gatun::net {

void Rings::add(std::span<const uint32_t> hosts, std::span<const uint32_t> order) {
  const auto first = static_cast<uint32_t>(ranks_.size());
  const auto count = static_cast<uint32_t>(hosts.size());
  ranks_.resize(first + count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t rank = order[i], next = order[(i + 1) % count];
    ranks_[first + rank].ranks = count;
    if (count > 1) ranks_[first + rank].flow = flows_.connect(hosts[rank], hosts[next], first + next);
  }
}

bool Rings::all_reduce(uint32_t index, uint64_t bytes) {
  Rank& rank = ranks_[index];
  const uint64_t share = uint64_t{rank.ranks} * flows_.payload_bytes();
  rank.block = (bytes + share - 1) / share;
  rank.busy = true;
  return pass_on(rank);
}

bool Rings::on_packets(uint32_t index, uint32_t packets) {
  ranks_[index].received += packets;
  return pass_on(ranks_[index]);
}

bool Rings::pass_on(Rank& rank) {
  if (!rank.busy) return false;
  const uint64_t received = rank.received - rank.before;
  if (rank.flow != kNone) flows_.allow(rank.flow, rank.before + std::min(rank.total(), rank.block + received));
  if (received < rank.total()) return false;
  rank.before += rank.total();
  rank.busy = false;
  return true;
}

}  // namespace gatun::net
