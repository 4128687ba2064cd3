// Inputs and the reference of `gatun perf`: what each rank contributes, and what every element must come out as.
//
// Both are pure functions of (seed, rank, index), so any rank can compute what all others sent and check every element
// without a message. The arithmetic is the documented one, written here a second time on purpose and as plainly as possible:
// ranks are taken in their order; 16-bit and 8-bit floats are reduced in f32 and rounded once, to nearest even; f8e4m3 turns
// to NaN where it overflows; integers wrap; an average divides before the last rounding; min and max take -0 < +0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "gatun/gatun.h"

namespace gatun::perf {

inline constexpr int kAllTypes = 12;  // values of gatun_type_t are 0..11
inline constexpr int kAllOps = 5;     // values of gatun_op_t are 0..4

size_t elem_bytes(gatun_type_t type);

// Names as nccl-tests prints them ("float", "half", "int8"); parsing takes Gatun's short names ("f32", "f16", "i8") as well.
const char* type_name(gatun_type_t type);
const char* op_name(gatun_op_t op);
bool parse_type(const std::string& text, gatun_type_t* type);
bool parse_op(const std::string& text, gatun_op_t* op);
std::string type_names();  // for error messages
std::string op_names();

// Which inputs: kBroad spans several powers of two and wraps integers, so that order and rounding show. kSmallIntegers sums
// to the same bits in any order, so that a peer which adds in its own order can be checked exactly as well.
enum class Inputs { kBroad, kSmallIntegers };

struct Problem {
  gatun_type_t type = GATUN_F32;
  gatun_op_t op = GATUN_SUM;
  Inputs inputs = Inputs::kBroad;
  uint64_t seed = 0;
  int nranks = 1;
};

// Elements [first, first + count) of what `rank` contributes. `op` only keeps products in range.
void fill_input(const Problem& problem, int rank, uint64_t first, uint64_t count, void* out);

// The same elements of the reduction over all ranks.
void fill_expected(const Problem& problem, uint64_t first, uint64_t count, void* out);

// Elements whose bits differ; any NaN equals any NaN. Neither pointer needs alignment.
uint64_t count_wrong(gatun_type_t type, const void* got, const void* want, uint64_t count);

// Conversions of the narrow floats, by type; tests compare them with published bit patterns.
float widen(gatun_type_t type, uint32_t bits);
uint32_t narrow(gatun_type_t type, float value);

}  // namespace gatun::perf
