#include "protocols/contract.h"

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

}  // namespace gatun
