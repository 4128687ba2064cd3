// The table of libgatun_dpdk.so (host/base/module.h), and what goes through it. Both sides are built together; the version
// catches files of different builds.
//
// A device is opened once per process, whoever asks for it, and shared by all its transports; it closes with the last of
// them. DPDK itself starts with the first device and stays.
#pragma once

#include <cstdint>
#include <memory>

#include "host/base/os.h"
#include "host/base/settings.h"
#include "host/transport/dpdk_spec.h"
#include "host/transport/transport.h"
#include "protocols/time.h"

namespace gatun {

struct DpdkDeviceOptions {
  uint32_t lanes = 1;       // transports that want queues of their own, if the device has them
  uint32_t buffers = 4096;  // received packets that all transports together can hold
};

class DpdkDevice {
 public:
  virtual ~DpdkDevice() = default;
  virtual std::string text() const = 0;            // "net_af_packet0 (10.0.0.2, 02:67:0a:00:00:02)"
  virtual std::string ip() const = 0;              // the first address
  virtual std::string warning() const = 0;         // what whoever chose this device should know; "" if nothing
  virtual uint32_t payload_bytes_max() const = 0;  // for any of its addresses
  virtual uint32_t receive_bytes() const = 0;      // as TransportCaps has it
  virtual uint32_t buffers() const = 0;            // DpdkDeviceOptions'

  // The switch's side: every source is heard, at this port of all the device's addresses.
  virtual Result<std::unique_ptr<Transport>> make_hub(uint16_t port, uint32_t buffers, uint32_t peers_max) = 0;
  // The worker's side: its only peer is 0. Blocks until the peer's place on the network is known.
  virtual Result<std::unique_ptr<Transport>> make_link(const Endpoint& peer, uint32_t buffers, TimeNs deadline) = 0;
};

inline constexpr uint32_t kDpdkModuleVersion = 3;
inline constexpr const char* kDpdkModuleEntry = "gatun_dpdk_module";

struct DpdkModule {
  uint32_t version;
  // Empty: why says why. The options are those of whoever comes first.
  std::shared_ptr<DpdkDevice> (*open)(const DpdkSpec& spec, const DpdkDeviceOptions& options, Status* why);
  const char* (*release)();  // "DPDK 22.11.11"
};
// kUnsupported: why there is none.
Result<const DpdkModule*> load_dpdk();

// The device of a setting. kInvalidArgument: the text is wrong; kUnsupported: there is no DPDK here; kSystem: it refuses.
Result<std::shared_ptr<DpdkDevice>> open_dpdk(const std::string& text, const DpdkDeviceOptions& options);

// The device that these settings want; null: none. kUnsupported and kSystem only if transport is dpdk: auto goes without it,
// and *why says why.
Result<std::shared_ptr<DpdkDevice>> wanted_dpdk(const SettingValues& settings, const DpdkDeviceOptions& options,
                                                std::string* why);

}  // namespace gatun
