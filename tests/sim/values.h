// Values: what each rank brings to an operation and what everybody must get, computed without the core.
//
// Inputs are functions of (key of the operation, rank, element). Integer-valued floats are exact in every order of addition;
// tags give each rank its own field of three bits, so that a wrong sum says who is missing or doubled; rough values have
// another sum in every order, and their reference is computed in the order of the tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/plan.h"
#include "tests/sim/shape.h"

namespace gatun::sim {

using Bytes = std::vector<std::byte>;

void fill_input(const OpPlan& op, const Shape& shape, uint32_t rank, std::byte* out);

// The result of one operation over all ranks, all parts of it.
Bytes expected_result(const JobPlan& job, const CallPlan& call, uint32_t op_number);

// One chunk of it from what the ranks bring to this chunk, in the order that its tree would add in.
void reduce_chunk(const JobPlan& job, const OpPlan& op, uint32_t op_number, uint64_t chunk,
                  std::span<const std::byte* const> of_rank, std::byte* out);

// Why `got` is not `want`, for people: the first difference, and with tags the ranks behind it.
std::string difference(const OpPlan& op, const Shape& shape, uint64_t chunk, const std::byte* got, const std::byte* want);

}  // namespace gatun::sim
