// The floor of the reduction kernels: the time to read n arrays and write one, by the same instruction set.
#pragma once

#include <cstddef>

namespace gatun {

// out[i] = in[0][i] | ... | in[inputs - 1][i]; inputs is 2, 4, 8 or 16; what is beyond the last whole 128 bytes is left out.
void read_and_write(const void* const* in, int inputs, void* out, size_t bytes);

}  // namespace gatun
