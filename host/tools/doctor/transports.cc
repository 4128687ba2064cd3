#include "host/tools/doctor/transports.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>

#include "host/tools/doctor/path_checks.h"
#include "host/tools/host_facts.h"
#include "host/transport/dpdk_eal.h"
#include "host/transport/dpdk_module.h"
#include "host/transport/shm_port.h"
#include "host/transport/udp.h"
#include "host/transport/udp_socket.h"
#include "host/transport/verbs.h"
#include "protocols/membership.h"

namespace gatun {
namespace {

constexpr uint32_t kRoceMtu = 4096, kRoceHeaders = 96;  // of RoCE v2 with every extension, as the kernel reckons

void check_features(std::initializer_list<const char*> wanted, const char* since, Section* section) {
  std::string there;
  for (const Feature& feature : kernel_features()) {
    if (std::find(wanted.begin(), wanted.end(), feature.name) == wanted.end()) continue;
    if (feature.there) {
      there += (there.empty() ? "" : ", ") + feature.name;
    } else {
      section->warn("kernel", feature.name + " is not there: " + feature.detail, fmt::format("Linux {} or later", since));
    }
  }
  section->ok("kernel", kernel_release() + " with " + there);
}

void check_buffers(int family, Section* section) {
  constexpr uint32_t kWanted = UdpOptions{}.socket_bytes;
  const Result<Fd> fd = make_udp_socket(family, {.socket_bytes = kWanted});
  if (!fd.ok())
    return section->missing("socket", fd.status().message(), "switch it on, or use an address of the other kind");
  const uint32_t bytes = receive_buffer_bytes(*fd.value());
  if (bytes >= kWanted) return section->ok("buffers", format_bytes(bytes) + " for a socket, as asked for");
  section->warn("buffers",
                fmt::format("{} of {} for a socket (net.core.rmem_max): fewer packets can be in flight", format_bytes(bytes),
                            format_bytes(kWanted)),
                fmt::format("sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}", kWanted));
}

uint64_t locked_memory_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ? ~uint64_t{0} : limit.rlim_cur;
}

// What a rank registers for one lane of the switch.
uint64_t registered_bytes(const SettingValues& settings) {
  const control::Join join{.trees = settings.trees, .window = settings.window, .payload_bytes = settings.payload_bytes};
  const Result<Sizing> sizing = size_job({}, {join}, {true});
  if (!sizing.ok()) return 0;
  const ShmShape shape = ShmShape::make(settings.trees, sizing.value().window, sizing.value().payload_bytes);
  return shape.region_bytes() + shape.result_bytes;
}

void check_roce_mtu(const Route& route, uint32_t bytes, Section* section) {
  const std::string fact =
      fmt::format("{} bytes in a RoCE packet, the MTU of {} being {}", bytes, route.interface.name, route.interface.mtu);
  if (bytes >= kRoceMtu || route.interface.name.empty()) return section->ok("MTU", fact);
  section->warn("MTU", fmt::format("{}; {} would go with larger ones", fact, kRoceMtu),
                fmt::format("ip link set {} mtu {} (at both ends and on the switches between)", route.interface.name,
                            (kRoceMtu + kRoceHeaders + 99) / 100 * 100));
}

// The RDMA device that has this end's address, with its port up.
void check_verbs_device(const Visit& visit, Section* section) {
  const Result<VerbsDevices> devices = open_verbs();
  if (!devices.ok()) {
    const std::string why = devices.status().message();
    const bool unbuilt = why.find("libgatun_verbs.so") != std::string::npos;
    return section->missing(unbuilt ? "module" : "devices", why,
                            unbuilt ? "apt-get install libibverbs-dev, and build Gatun again (./dev build)"
                                    : "apt-get install rdma-core ibverbs-providers; modprobe ib_uverbs; ibv_devinfo");
  }
  if (!visit.route.ok()) return;
  const Route& route = visit.route.value();
  const VerbsGid gid = gid_of(route.local);
  const Result<VerbsDevice*> device = find_verbs(devices.value(), gid);
  const Result<uint32_t> mtu = device.ok() ? device.value()->mtu_bytes(gid) : Result<uint32_t>(device.status());
  if (!mtu.ok()) {
    return section->missing(
        "address", mtu.status().message(),
        fmt::format("give the switch at the address of an RDMA interface (rdma link show), which must be "
                    "up; software: rdma link add rxe0 type rxe netdev {}",
                    route.interface.name));
  }
  section->ok("address", route.local.ip() + " is a RoCE v2 address of " + device.value()->gid_table());
  check_roce_mtu(route, mtu.value(), section);
  visit.host.numa("/sys/class/infiniband/" + device.value()->name() + "/device", device.value()->name(), visit.cores,
                  section);
}

bool check_dpdk_device(const Visit& visit, Section* section) {
  const std::string& text = visit.settings.device;
  if (text.empty()) {
    section->missing(
        "device", "the setting device names none; here are " + visit.host.cards(),
        "GATUN_DEVICE='0000:3b:00.0 10.0.0.102/24', or with an interface: 'net_af_packet0,iface=eth1 10.0.0.102/24'");
    return false;
  }
  const Result<DpdkSpec> spec = DpdkSpec::parse(text);
  if (!spec.ok()) {
    section->missing("device", spec.status().message(), "correct the setting device (GATUN_DEVICE)");
    return false;
  }
  bool ordinary = true;
  if (spec.value().pci()) {
    ordinary = visit.host.card(spec.value().device, section);
    visit.host.numa("/sys/bus/pci/devices/" + spec.value().device, spec.value().device, visit.cores, section);
  } else if (!visit.host.may(CAP_NET_RAW)) {
    section->warn("permission", "this process is not root, which most virtual devices need", "run as root");
  }
  if (const std::string warning = spec.value().warning(); !warning.empty())
    section->warn("driver", warning, "net_virtio_user0 here, net_vhost0 at the switch");
  const EalNeeds needs{.memory_bytes = spec.value().memory_bytes(DpdkDeviceOptions{}.buffers)};
  visit.host.huge_pages(needs.huge_bytes(), ordinary, section);
  if (spec.value().pci()) visit.host.locked_memory(locked_memory_limit(), needs.huge_bytes(), section);
  return section->count(Level::kMissing) == 0;
}

// The way without a switch, tried where nobody listens, over sockets of this host.
void check_mesh(const Visit& visit, Section* section) {
  const std::string& fallback = visit.settings.fallback;
  const Outcome outcome =
      try_job({.job = visit.job + "-ring", .address = "127.0.0.1:1", .transport = "udp", .fallback = fallback});
  if (outcome.code != GATUN_SUCCESS) {
    section->missing("mesh", outcome.error, "");
  } else if (outcome.stats.transport != fallback) {
    section->warn("Gloo", "not there: without a switch ranks exchange directly, which takes longer for large arrays",
                  "apt-get install libgloo-dev, and build Gatun again (./dev build)");
  } else {
    section->ok("mesh", fmt::format("without a switch operations go on ({}) over TCP between the ranks", fallback));
  }
  const std::string& rendezvous = visit.settings.rendezvous;
  const Result<std::vector<Endpoint>> meeting = resolve(rendezvous, kDefaultPort);
  const bool elsewhere = visit.route.ok() && !visit.route.value().peer.loopback();
  if (!elsewhere || !meeting.ok() || !meeting.value()[0].loopback()) return;
  section->warn("rendezvous",
                rendezvous +
                    " is this host: ranks of several hosts that find no switch cannot meet there (PyTorch's meet "
                    "through its store)",
                "GATUN_RENDEZVOUS=HOST_OF_RANK_0:7119 on all ranks");
}

}  // namespace

Section shm_section(const Visit& visit) {
  Section section{.name = "shm", .transport = true};
  check_features({"memfd", "eventfd"}, "3.17", &section);
  if (visit.switch_lives)
    check_path(visit.job, section.name, "run gatund on this host, in this network namespace", &section);
  return section;
}

Section udp_section(const Visit& visit) {
  Section section{.name = "udp", .transport = true};
  check_features({"udp_gso", "udp_gro", "ecn"}, "5.0", &section);
  if (!visit.route.ok()) {
    section.missing("route", visit.route.status().message(), "ip route get ADDRESS must find one");
    return section;
  }
  Route route = visit.route.value();
  if (const uint32_t set = visit.settings.payload_bytes; set != 0) route.payload_bytes = std::min(route.payload_bytes, set);
  check_buffers(route.peer.family(), &section);
  if (!route.interface.name.empty()) visit.host.numa(route.folder(), route.interface.name, visit.cores, &section);
  if (visit.switch_lives) check_udp_path(visit.job, route, &section);
  return section;
}

Section verbs_section(const Visit& visit) {
  Section section{.name = "verbs", .transport = true};
  check_verbs_device(visit, &section);
  visit.host.locked_memory(locked_memory_limit(), registered_bytes(visit.settings), &section);
  if (visit.switch_lives && section.count(Level::kMissing) == 0)
    check_path(visit.job, section.name, "on the switch's host: gatun doctor --transport verbs", &section);
  return section;
}

Section dpdk_section(const Visit& visit) {
  Section section{.name = "dpdk", .transport = true};
  const Result<const DpdkModule*> module = load_dpdk();
  if (!module.ok()) {
    section.missing("module", module.status().message(), "apt-get install libdpdk-dev, and build Gatun again (./dev build)");
  } else {
    section.ok("module", module.value()->release());
  }
  if (check_dpdk_device(visit, &section) && visit.switch_lives)
    check_path(visit.job, section.name, "on the switch's host: gatund --transport udp, or dpdk", &section);
  return section;
}

Section fallback_section(const Visit& visit) {
  Section section{.name = "fallback", .needed = visit.settings.fallback != "off"};
  if (section.needed) {
    check_mesh(visit, &section);
  } else {
    section.ok("mesh", "none: without a switch operations end with an error, as the setting fallback is off");
  }
  section.ok("GPU", nccl_feature().detail);
  return section;
}

}  // namespace gatun
