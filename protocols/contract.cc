#include "protocols/contract.h"

#include <vector>

namespace gatun {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint32_t fingerprint(const Contract& contract, uint32_t op_number) {
  const uint64_t kind = uint64_t{static_cast<uint8_t>(contract.collective)} |
                        uint64_t{static_cast<uint8_t>(contract.type)} << 8 |
                        uint64_t{static_cast<uint8_t>(contract.op)} << 16 | uint64_t{contract.root} << 32;
  uint64_t hash = mix(kind);
  hash = mix(hash ^ contract.count);
  hash = mix(hash ^ contract.tag);
  hash = mix(hash ^ op_number);
  return static_cast<uint32_t>(hash >> 32);
}

std::string describe(const Contract& contract) {
  if (contract.collective == Collective::kBarrier) return "barrier";
  std::string text =
      std::string(name(contract.collective)) + " of " + std::to_string(contract.count) + " " + name(contract.type);
  const bool reduces = contract.collective == Collective::kAllReduce || contract.collective == Collective::kReduceScatter ||
                       contract.collective == Collective::kReduce;
  const bool rooted = contract.collective == Collective::kBroadcast || contract.collective == Collective::kReduce;
  if (reduces) text += std::string(", ") + name(contract.op);
  if (rooted) text += ", root " + std::to_string(contract.root);
  if (contract.tag != 0) text += ", tag " + std::to_string(contract.tag);
  return text;
}

std::string describe_difference(uint32_t ordinal, std::span<const Contract* const> by_rank) {
  const auto same = [](const Contract* a, const Contract* b) { return a && b ? *a == *b : a == b; };
  std::string text = "operation " + std::to_string(ordinal) + " differs between ranks: ";
  std::vector<bool> told(by_rank.size());
  const char* separator = "";
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (told[rank]) continue;
    std::string group;
    size_t size = 0;
    for (size_t other = rank; other < by_rank.size(); ++other) {
      if (told[other] || !same(by_rank[rank], by_rank[other])) continue;
      told[other] = true;
      group += (size++ == 0 ? "" : ", ") + std::to_string(other);
    }
    text += separator + std::string(size == 1 ? "rank " : "ranks ") + group + ": ";
    text += by_rank[rank] ? describe(*by_rank[rank]) : "nothing, no elements";
    separator = "; ";
  }
  return text;
}

}  // namespace gatun
