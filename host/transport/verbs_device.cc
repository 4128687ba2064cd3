#include "host/transport/verbs_device.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "host/transport/verbs_dmabuf.h"

namespace gatun {
namespace {

constexpr size_t kGidsMax = 256;  // of all ports of a device; only those in use are listed

std::vector<ibv_gid_entry> gids_of(ibv_context* context) {
  std::vector<ibv_gid_entry> gids(kGidsMax);
  const ssize_t count = ::ibv_query_gid_table(context, gids.data(), gids.size(), 0);
  gids.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return gids;
}

VerbsGid bytes_of(const ibv_gid& gid) {
  VerbsGid bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return bytes;
}

const char* type_name(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB: return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1: return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2: return "RoCE v2";
  }
  return "unknown type";
}

// What this process has locked so far; 0 where the kernel does not say.
uint64_t locked_kib() {
  std::ifstream status("/proc/self/status");
  uint64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:") || line.starts_with("VmPin:")) kib += std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return kib;
}

std::string locked_memory_limit(uint64_t more_kib, const char* otherwise) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "; this process may lock " + std::to_string(limit.rlim_cur >> 10) + " KiB of memory and needs " +
         std::to_string(locked_kib() + more_kib) +
         " KiB: raise the limit (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; memlock in "
         "/etc/security/limits.conf), or " +
         otherwise;
}

}  // namespace

Status verbs_error(const OpenDevice& device, const std::string& what, int error) {
  return Status(Code::kSystem, "cannot " + what + " on " + device.name() + ": " + std::strerror(error));
}

Result<std::vector<std::shared_ptr<OpenDevice>>> OpenDevice::open_all() {
  int count = 0;
  errno = 0;
  ibv_device** list = ::ibv_get_device_list(&count);
  if (list == nullptr) {
    const int error = errno;
    if (error == ENOSYS) {
      return Status(Code::kUnsupported, "this kernel has no RDMA: its module ib_uverbs is not loaded (modprobe ib_uverbs)");
    }
    return Status(Code::kUnsupported, std::string("cannot list RDMA devices: ") + std::strerror(error));
  }
  std::vector<std::shared_ptr<OpenDevice>> devices;
  std::string failures;
  for (int i = 0; i < count; ++i) {
    errno = 0;
    VerbsContext context(::ibv_open_device(list[i]));
    if (context != nullptr) {
      devices.push_back(std::make_shared<OpenDevice>(std::move(context)));
    } else {
      failures += std::string(failures.empty() ? "" : "; ") + "cannot open " + ::ibv_get_device_name(list[i]) + ": " +
                  std::strerror(errno);
    }
  }
  ::ibv_free_device_list(list);
  if (!devices.empty()) return devices;
  if (!failures.empty()) return Status(Code::kUnsupported, failures);
  return Status(Code::kUnsupported,
                "there is no RDMA device; for RDMA in software: rdma link add rxe0 type rxe netdev INTERFACE");
}

OpenDevice::OpenDevice(VerbsContext context) : context_(std::move(context)) {
  ::ibv_query_device(context_.get(), &limits_);
  const int flags = ::fcntl(context_->async_fd, F_GETFL);
  ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
}

Result<VerbsAddress> OpenDevice::find(const VerbsGid& gid) const {
  for (const ibv_gid_entry& entry : gids_of(context_.get())) {
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || bytes_of(entry.gid) != gid) continue;
    ibv_port_attr port{};
    const auto number = static_cast<uint8_t>(entry.port_num);
    if (const int error = ::ibv_query_port(context_.get(), number, &port); error != 0) {
      return verbs_error(*this, "query port " + std::to_string(number), error);
    }
    if (port.state != IBV_PORT_ACTIVE) {
      return Status(Code::kUnsupported, "port " + std::to_string(number) + " of " + name() + " is " +
                                            ::ibv_port_state_str(port.state) + "; bring its interface up");
    }
    return VerbsAddress{.port = number, .index = static_cast<uint8_t>(entry.gid_index), .mtu = port.active_mtu};
  }
  return Status(Code::kUnsupported, gid_text(gid) + " is not a RoCE v2 address of " + gid_table());
}

std::string OpenDevice::gid_table() const {
  std::string table;
  for (const ibv_gid_entry& entry : gids_of(context_.get())) {
    table += (table.empty() ? "" : ", ") + std::string("[") + std::to_string(entry.gid_index) + "] " +
             gid_text(bytes_of(entry.gid)) + " " + type_name(entry.gid_type) + " on port " + std::to_string(entry.port_num);
  }
  return name() + " (" + (table.empty() ? "no addresses" : table) + ")";
}

std::string OpenDevice::describe() const {
  std::string ports;
  for (unsigned number = 1; number <= limits_.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (::ibv_query_port(context_.get(), static_cast<uint8_t>(number), &port) != 0) continue;
    const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    ports += ", port " + std::to_string(number) + " " + ::ibv_port_state_str(port.state) + ", " +
             (ethernet ? "RoCE MTU " + std::to_string(128u << port.active_mtu) : "InfiniBand, which verbs here cannot use");
  }
  return gid_table() + ports +
         (takes_dmabuf(context_.get()) ? ", takes GPU memory by dma-buf" : ", no dma-buf for GPU memory");
}

Result<VerbsDomain> OpenDevice::make_domain() const {
  VerbsDomain domain(::ibv_alloc_pd(context_.get()));
  if (domain == nullptr) return verbs_error(*this, "make a protection domain", errno);
  return domain;
}

Result<VerbsKey> OpenDevice::make_key(ibv_pd* domain, std::span<std::byte> memory, int access, const char* otherwise) const {
  VerbsKey key(::ibv_reg_mr(domain, memory.data(), memory.size(), access));
  if (key != nullptr) return key;
  const int error = errno;
  const uint64_t kib = (memory.size() + 1023) >> 10;
  const std::string what = "register " + std::to_string(kib) + " KiB of memory";
  const bool limited = error == ENOMEM || error == EAGAIN || error == EPERM;
  return Status(Code::kSystem, std::string(verbs_error(*this, what, error).message()) +
                                   (limited ? locked_memory_limit(kib, otherwise) : ""));
}

std::string OpenDevice::events() {
  const std::lock_guard lock(mutex_);
  ibv_async_event event;
  while (::ibv_get_async_event(context_.get(), &event) == 0) {
    const bool of_port = event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE ||
                         event.event_type == IBV_EVENT_GID_CHANGE;
    if (of_port || event.event_type == IBV_EVENT_DEVICE_FATAL) {
      events_ = name() + " said: " + ::ibv_event_type_str(event.event_type) +
                (of_port ? " (port " + std::to_string(event.element.port_num) + ")" : "");
    }
    ::ibv_ack_async_event(&event);
  }
  return events_;
}

}  // namespace gatun
