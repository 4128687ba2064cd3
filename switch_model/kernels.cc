#include "switch_model/kernels.h"

// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/highway.h>
// clang-format on

#include <cstring>

#include "protocols/float_environment.h"
#include "protocols/status.h"
#include "switch_model/kernels_table.h"

namespace gatun {
namespace {

int64_t targets_here() {
  hwy::SetSupportedTargetsForTest(0);
  return hwy::SupportedTargets() & HWY_TARGETS;
}

}  // namespace

void reduce(const ReduceArgs& args) {
  GATUN_CHECK(args.inputs >= 1 && args.inputs <= kReduceInputsMax && args.divisor != 0);
  FloatEnvironment environment;
  switch (args.type) {
    case Type::kF32:
    case Type::kF64: return reduce_float(args);
    case Type::kF16:
    case Type::kBF16: return reduce_half(args);
    case Type::kE4M3:
    case Type::kE5M2: return reduce_float8(args);
    default: return reduce_integer(args);
  }
}

int kernel_targets(const char** names, int names_max) {
  int count = 0;
  for (int64_t rest = targets_here(); rest != 0 && count < names_max; rest &= rest - 1) {
    names[count++] = hwy::TargetName(rest & -rest);  // better sets have lower bits
  }
  return count;
}

bool force_kernel_target(const char* name) {
  int64_t wanted = targets_here();
  if (*name != '\0') {
    int64_t rest = wanted;
    while (rest != 0 && std::strcmp(hwy::TargetName(rest & -rest), name) != 0) rest &= rest - 1;
    wanted = rest & -rest;
  }
  if (wanted == 0) return false;
  hwy::GetChosenTarget().Update(wanted);
  return true;
}

}  // namespace gatun
