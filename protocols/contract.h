// Contract: what all ranks must agree on about one operation, and its fingerprint, which every packet carries.
//
// The switch compares fingerprints only. When they differ the ranks report their contracts to the controller, which names
// them all in the error (membership.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "protocols/types.h"

namespace gatun {

struct Contract {
  Collective collective = Collective::kAllReduce;
  Type type = Type::kF32;
  Op op = Op::kSum;
  uint32_t root = 0;
  uint64_t count = 0;  // elements, as the caller gave them
  uint64_t tag = 0;

  bool operator==(const Contract&) const = default;
};

// 32 bits over every field and the operation's number.
uint32_t fingerprint(const Contract& contract, uint32_t op_number);

// "allreduce of 409600 f32, sum" with root and tag where they matter.
std::string describe(const Contract& contract);

// "operation 7 differs between ranks: ranks 0, 2: allreduce of 4 f32, sum; rank 1: nothing, no elements". by_rank: null
// where a rank has nothing under this number. Groups in the order of their lowest rank, so all ranks say the same.
std::string describe_difference(uint32_t ordinal, std::span<const Contract* const> by_rank);

}  // namespace gatun
