// libgatun_verbs.so: what of the verbs transport needs libibverbs.
#include "host/transport/verbs_hub.h"

namespace gatun {
namespace {

class Device final : public VerbsDevice {
 public:
  explicit Device(std::shared_ptr<OpenDevice> device) : device_(std::move(device)) {}

  std::string name() const override { return device_->name(); }
  bool has(const VerbsGid& gid) const override { return device_->find(gid).ok(); }
  Result<uint32_t> mtu_bytes(const VerbsGid& gid) const override {
    const Result<VerbsAddress> address = device_->find(gid);
    if (!address.ok()) return address.status();
    return 128u << address.value().mtu;
  }
  std::string gid_table() const override { return device_->gid_table(); }
  Result<std::unique_ptr<VerbsHub>> make_hub(const VerbsHubOptions& options) override {
    return QueueHub::make(device_, options);
  }
  Result<std::unique_ptr<VerbsLink>> make_link(const ShmShape& shape, const VerbsGid& from, const VerbsGid& to) override {
    return QueueLink::make(device_, shape, from, to);
  }

 private:
  std::shared_ptr<OpenDevice> device_;
};

Result<VerbsDevices> open() {
  Result<std::vector<std::shared_ptr<OpenDevice>>> opened = OpenDevice::open_all();
  if (!opened.ok()) return opened.status();
  VerbsDevices devices;
  for (auto& device : opened.value()) devices.push_back(std::make_unique<Device>(std::move(device)));
  return devices;
}

std::string report() {
  const Result<std::vector<std::shared_ptr<OpenDevice>>> opened = OpenDevice::open_all();
  if (!opened.ok()) return opened.status().message();
  std::string lines;
  for (const auto& device : opened.value()) lines += (lines.empty() ? "" : "\n") + device->describe();
  return lines;
}

constexpr VerbsModule kModule = {kVerbsModuleVersion, open};

}  // namespace
}  // namespace gatun

extern "C" __attribute__((visibility("default"))) const void* gatun_verbs_module() {
  return &gatun::kModule;
}

// For tools: a line for each device, or the reason why there is none. It lasts until this thread's next call.
extern "C" __attribute__((visibility("default"))) const void* gatun_verbs_report() {
  static thread_local std::string text;
  text = gatun::report();
  return text.c_str();
}
