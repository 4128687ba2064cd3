#include "host/transport/dpdk_module.h"

#include <rte_version.h>

#include "host/transport/dpdk_device.h"

namespace gatun {
namespace {
constexpr DpdkModule kModule = {kDpdkModuleVersion, DpdkDeviceShared::open, rte_version};
}  // namespace
}  // namespace gatun

extern "C" __attribute__((visibility("default"))) const void* gatun_dpdk_module() {
  return &gatun::kModule;
}
