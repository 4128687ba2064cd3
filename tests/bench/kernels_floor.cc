#include "tests/bench/kernels_floor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/kernels_floor.cc"
// clang-format off
#include "switch_model/kernels_targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace gatun {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::ScalableTag<uint8_t>;

template <int kInputs>
HWY_NOINLINE void read_and_write_n(const void* const* in, void* out, size_t bytes) {
  const Bytes d;
  const size_t step = 2 * hn::Lanes(d);
  const uint8_t* from[kInputs];
  for (int k = 0; k < kInputs; ++k) from[k] = static_cast<const uint8_t*>(in[k]);
  auto* to = static_cast<uint8_t*>(out);
  for (size_t at = 0; at + step <= bytes; at += step) {
    auto a = hn::LoadU(d, from[0] + at), b = hn::LoadU(d, from[0] + at + step / 2);
    _Pragma("GCC unroll 16") for (int k = 1; k < kInputs; ++k) {
      a = hn::Or(a, hn::LoadU(d, from[k] + at));
      b = hn::Or(b, hn::LoadU(d, from[k] + at + step / 2));
    }
    hn::StoreU(a, d, to + at);
    hn::StoreU(b, d, to + at + step / 2);
  }
}

void read_and_write_kernel(const void* const* in, int inputs, void* out, size_t bytes) {
  switch (inputs) {
    case 2: return read_and_write_n<2>(in, out, bytes);
    case 4: return read_and_write_n<4>(in, out, bytes);
    case 8: return read_and_write_n<8>(in, out, bytes);
    case 16: return read_and_write_n<16>(in, out, bytes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace gatun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gatun {

HWY_EXPORT(read_and_write_kernel);
void read_and_write(const void* const* in, int inputs, void* out, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(read_and_write_kernel)(in, inputs, out, bytes);
}

}  // namespace gatun
#endif
