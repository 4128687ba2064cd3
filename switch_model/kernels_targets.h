// Which instruction sets the kernels are built for; to be included before Highway in every kernel file, so that all agree.
#pragma once

// The loops keep vectors in arrays, which types of unknown size (SVE, RVV) do not allow; such machines use NEON or the
// reference. SSSE3 without SSE4.1 is a processor of 2007.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
