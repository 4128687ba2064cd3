// Words of sentences.
#pragma once

#include <cstdint>
#include <string>

namespace gatun {

// "1 operation", "2 operations".
inline std::string counted(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace gatun
