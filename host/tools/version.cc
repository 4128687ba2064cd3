#include "host/tools/version.h"

#include "gatun/gatun.h"

namespace gatun {

std::string version_text() {
  int version = 0;
  gatun_version(&version);
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

}  // namespace gatun
