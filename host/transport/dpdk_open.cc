#include "host/base/module.h"
#include "host/transport/dpdk_module.h"

namespace gatun {

Result<const DpdkModule*> load_dpdk() {
  Result<const void*> loaded = load_module(
      {.file = "libgatun_dpdk.so", .entry = kDpdkModuleEntry, .what = "the DPDK transport", .needs = "DPDK (libdpdk-dev)"});
  if (!loaded.ok()) return loaded.status();
  const DpdkModule* module = static_cast<const DpdkModule*>(loaded.value());
  if (module->version != kDpdkModuleVersion) {
    return Status(Code::kUnsupported, "libgatun_dpdk.so belongs to another version of Gatun");
  }
  return module;
}

Result<std::shared_ptr<DpdkDevice>> open_dpdk(const std::string& text, const DpdkDeviceOptions& options) {
  Result<DpdkSpec> spec = DpdkSpec::parse(text);
  if (!spec.ok()) return spec.status();
  Result<const DpdkModule*> module = load_dpdk();
  if (!module.ok()) return module.status();
  Status why;
  std::shared_ptr<DpdkDevice> device = module.value()->open(spec.value(), options, &why);
  if (device == nullptr) return why;
  return device;
}

Result<std::shared_ptr<DpdkDevice>> wanted_dpdk(const SettingValues& settings, const DpdkDeviceOptions& options,
                                                std::string* why) {
  const bool must = settings.transport == "dpdk";
  if (must && settings.device.empty()) {
    return Status(Code::kInvalidArgument,
                  "transport is dpdk, but the setting device is none; name the device and its address there");
  }
  if (settings.device.empty() || (!must && settings.transport != "auto")) return std::shared_ptr<DpdkDevice>();
  Result<std::shared_ptr<DpdkDevice>> device = open_dpdk(settings.device, options);
  if (device.ok() || must || device.status().code() == Code::kInvalidArgument) return device;
  *why = device.status().message();
  return std::shared_ptr<DpdkDevice>();
}

}  // namespace gatun
