#include "host/transport/dpdk_port.h"

#include <dirent.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "host/base/placement.h"
#include "host/transport/dpdk_eal.h"

namespace gatun {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr uint32_t kQueuesMax = 16;
constexpr uint32_t kDeviceBytes = 64;  // that a device may put into a buffer beyond the frame: tags, its own header

std::string reason(int error) {
  return std::string(rte_strerror(error < 0 ? -error : error)) + eal_says();
}

// What the kernel knows of an interface; 0: there is none of that name here.
uint32_t interface_mtu(const std::string& name) {
  Fd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  return ::ioctl(*fd, SIOCGIFMTU, &request) == 0 ? static_cast<uint32_t>(request.ifr_mtu) : 0;
}

// The packet sockets of this process on an interface.
std::vector<int> packet_sockets(int interface) {
  std::vector<int> found;
  DIR* entries = ::opendir("/proc/self/fd");
  if (!entries) return found;
  while (const dirent* entry = ::readdir(entries)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_ll address{};
    socklen_t size = sizeof address;
    if (entry->d_name[0] == '.' || ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sll_family == AF_PACKET && address.sll_ifindex == interface) found.push_back(fd);
  }
  ::closedir(entries);
  std::sort(found.begin(), found.end());
  return found;
}

uint32_t mtu_wanted(const DpdkSpec& spec, uint32_t of_interface) {
  const uint32_t most = of_interface != 0 ? std::min(of_interface, kDpdkMtuMax) : 1500u;
  return spec.mtu != 0 ? spec.mtu : most;
}

}  // namespace

rte_mempool* make_mbuf_pool(uint32_t count, uint32_t data_bytes, uint32_t private_bytes, int socket) {
  static std::atomic<uint32_t> number{0};
  const std::string name = "gatun" + std::to_string(number++);
  const auto room = static_cast<uint16_t>(std::min<uint32_t>(data_bytes + RTE_PKTMBUF_HEADROOM, UINT16_MAX));
  const auto own =
      static_cast<uint16_t>((private_bytes + RTE_MBUF_PRIV_ALIGN - 1) / RTE_MBUF_PRIV_ALIGN * RTE_MBUF_PRIV_ALIGN);
  // DPDK's default is a ring, in which a thread that is interrupted in the middle holds up all others.
  rte_mempool* pool = rte_pktmbuf_pool_create_by_ops(name.c_str(), count, 0, own, room, socket, "lf_stack");
  if (pool == nullptr && rte_errno != ENOMEM) {
    pool = rte_pktmbuf_pool_create((name + "r").c_str(), count, 0, own, room, socket);
  }
  return pool;
}

Result<std::unique_ptr<DpdkPort>> DpdkPort::open(const DpdkSpec& spec, const DpdkDeviceOptions& options) {
  std::unique_ptr<DpdkPort> port(new DpdkPort(spec));
  if (Status status = port->probe(); !status.ok()) return status;
  if (Status status = port->configure(options); !status.ok()) return status;
  return port;
}

Status DpdkPort::probe() {
  const std::string interface = spec_.interface();
  const uint32_t interface_bytes = interface.empty() ? 0 : interface_mtu(interface);
  if (!interface.empty() && interface_bytes == 0) {
    return Status(Code::kInvalidArgument, "device " + spec_.device + ": there is no interface " + interface +
                                              " here ('ip link' lists them); correct the setting device");
  }
  facts_.mtu = mtu_wanted(spec_, interface_bytes);
  if (interface_bytes != 0 && facts_.mtu > interface_bytes) {
    return Status(Code::kInvalidArgument, "device " + spec_.device + ": mtu=" + std::to_string(spec_.mtu) +
                                              " is more than the interface carries; first 'ip link set " + interface +
                                              " mtu " + std::to_string(spec_.mtu) + "'");
  }
  if (Status status = spec_.fits(facts_.mtu); !status.ok()) return status;
  const int index = interface.empty() ? 0 : static_cast<int>(::if_nametoindex(interface.c_str()));
  const std::vector<int> before = index != 0 ? packet_sockets(index) : std::vector<int>();
  forget_what_eal_said();
  const int code = rte_dev_probe(spec_.device_for_mtu(facts_.mtu).c_str());
  const std::string name = spec_.device.substr(0, spec_.device.find(','));
  if (code < 0 && !(code == -EEXIST && spec_.pci())) {
    const std::string fix = spec_.pci()        ? "; is it bound to a driver for DPDK ('dpdk-devbind.py -s' says)?"
                            : ::geteuid() != 0 ? "; this process is not root, which most devices need"
                                               : "";
    return Status(Code::kSystem, "DPDK cannot open the device " + spec_.device + ": " + reason(code) + fix);
  }
  if (rte_eth_dev_get_port_by_name(name.c_str(), &facts_.id) != 0) {
    return Status(Code::kInvalidArgument, "device " + spec_.device + " is not an Ethernet device of DPDK");
  }
  probed_ = true;
  facts_.cores = cores_near(spec_.pci() ? "bus/pci/devices/" + name : "class/net/" + interface + "/device");
  if (index == 0 || spec_.driver() != "net_af_packet") return {};
  for (const int fd : packet_sockets(index)) {
    if (std::find(before.begin(), before.end(), fd) == before.end()) facts_.sockets.push_back(fd);
  }
  return {};
}

// Only what the device says that it can is asked of it; everything else is done in software.
Status DpdkPort::configure(const DpdkDeviceOptions& options) {
  rte_eth_dev_info info{};
  if (const int code = rte_eth_dev_info_get(facts_.id, &info); code != 0) {
    return Status(Code::kSystem, "device " + spec_.device + " says nothing of itself: " + reason(code));
  }
  const std::string driver = spec_.driver();
  const bool copies = driver == "net_af_packet" || driver == "net_vhost";
  facts_.chains = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
  facts_.copies_at_once = copies && facts_.chains;
  facts_.udp_checksum = (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
  rte_eth_conf conf{};
  choose_queues(info, options.lanes, &conf);
  if (facts_.chains) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  if (facts_.udp_checksum) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  facts_.ip4_checksum = facts_.udp_checksum && spec_.pci();
  // af_packet and memif take longer frames than they admit, and refuse to be told.
  const bool settable = info.max_mtu >= facts_.mtu && info.max_rx_pktlen >= facts_.mtu + kEthernetBytes;
  if (settable) conf.rxmode.mtu = facts_.mtu;
  forget_what_eal_said();
  const auto receive_queues = static_cast<uint16_t>(facts_.receive_queues);
  const int code = rte_eth_dev_configure(facts_.id, receive_queues, static_cast<uint16_t>(facts_.send_queues), &conf);
  if (code != 0) {
    return Status(Code::kSystem, "device " + spec_.device + " cannot be configured for an MTU of " +
                                     std::to_string(facts_.mtu) + ": " + reason(code));
  }
  if (Status status = set_up_queues(options); !status.ok()) return status;
  if (const int started = rte_eth_dev_start(facts_.id); started != 0) {
    return Status(Code::kSystem, "device " + spec_.device + " does not start: " + reason(started));
  }
  rte_ether_addr mac{};
  rte_eth_macaddr_get(facts_.id, &mac);
  std::memcpy(facts_.device_mac.bytes.data(), mac.addr_bytes, 6);
  // Questions for an IPv6 address come to a group; and another station's address needs all frames. What a device cannot
  // do here it does not need: the virtual ones deliver everything anyway.
  if (spec_.own_mac(facts_.device_mac) != facts_.device_mac || rte_eth_allmulticast_enable(facts_.id) != 0) {
    (void)rte_eth_promiscuous_enable(facts_.id);
  }
  return {};
}

// A network card gets as many as there are lanes, if it can spread packets over them. To all queues of these virtual devices
// frames come whether anybody reads them or not.
void DpdkPort::choose_queues(const rte_eth_dev_info& info, uint32_t lanes, rte_eth_conf* conf) {
  const std::string driver = spec_.driver();
  const bool all = driver == "net_af_packet" || driver == "net_vhost";
  const uint32_t wanted = all ? kQueuesMax : std::min(lanes, kQueuesMax);
  facts_.send_queues = std::clamp<uint32_t>(info.max_tx_queues, 1, wanted);
  facts_.receive_queues = all ? std::clamp<uint32_t>(info.max_rx_queues, 1, wanted) : 1;
  const uint64_t hashed = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
  if (all || hashed == 0 || wanted == 1 || info.max_rx_queues < wanted) return;
  facts_.receive_queues = wanted;
  conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
  conf->rx_adv_conf.rss_conf.rss_hf = hashed;
}

Status DpdkPort::set_up_queues(const DpdkDeviceOptions& options) {
  uint16_t receive = kDescriptors, send = kDescriptors;
  (void)rte_eth_dev_adjust_nb_rx_tx_desc(facts_.id, &receive, &send);
  const int socket = rte_eth_dev_socket_id(facts_.id);
  const bool packet_ring = spec_.driver() == "net_af_packet";
  const uint32_t frame_bytes = packet_ring ? af_packet_frame_bytes(facts_.mtu) : facts_.mtu + kEthernetBytes + kDeviceBytes;
  facts_.send_frames = send;
  facts_.receive_frames = packet_ring ? kAfPacketRingBytes / frame_bytes : receive;
  const uint32_t in_queues = facts_.receive_queues * receive;
  pool_ = make_mbuf_pool(options.buffers + in_queues + 4 * kBurst, frame_bytes, 0, socket);
  if (pool_ == nullptr) {
    return Status(Code::kSystem, "device " + spec_.device + ": no memory for " + std::to_string(options.buffers) +
                                     " buffers of " + std::to_string(frame_bytes) + " bytes: " + reason(rte_errno) +
                                     "; lower the setting memory, or add huge pages");
  }
  for (uint32_t queue = 0; queue < facts_.receive_queues; ++queue) {
    const int code = rte_eth_rx_queue_setup(facts_.id, static_cast<uint16_t>(queue), receive, static_cast<unsigned>(socket),
                                            nullptr, pool_);
    if (code != 0) return Status(Code::kSystem, "device " + spec_.device + " gives no receive queue: " + reason(code));
  }
  for (uint32_t queue = 0; queue < facts_.send_queues; ++queue) {
    const int code =
        rte_eth_tx_queue_setup(facts_.id, static_cast<uint16_t>(queue), send, static_cast<unsigned>(socket), nullptr);
    if (code != 0) return Status(Code::kSystem, "device " + spec_.device + " gives no send queue: " + reason(code));
  }
  return {};
}

DpdkPort::~DpdkPort() {
  if (probed_) {
    rte_eth_dev_info info{};
    const bool known = rte_eth_dev_info_get(facts_.id, &info) == 0;
    // A peer that is gone must not end the process by SIGPIPE: virtio_user still writes to it here.
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
    (void)rte_eth_dev_stop(facts_.id);
    (void)rte_eth_dev_close(facts_.id);
    if (known && info.device != nullptr) (void)rte_dev_remove(info.device);
    const timespec at_once{};
    if (!sigismember(&before, SIGPIPE)) {
      while (::sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) continue;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  rte_mempool_free(pool_);
}

uint32_t DpdkPort::receive(uint32_t queue, rte_mbuf** out, uint32_t count) {
  return rte_eth_rx_burst(facts_.id, static_cast<uint16_t>(queue), out, static_cast<uint16_t>(count));
}

uint32_t DpdkPort::send(uint32_t queue, rte_mbuf** mbufs, uint32_t count) {
  return rte_eth_tx_burst(facts_.id, static_cast<uint16_t>(queue), mbufs, static_cast<uint16_t>(count));
}

// af_packet says that it has a link whatever its interface does; the kernel knows better.
bool DpdkPort::has_link() const {
  const std::string interface = spec_.interface();
  if (!facts_.sockets.empty()) {
    ifreq request{};
    std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
    return ::ioctl(facts_.sockets[0], SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_RUNNING) != 0;
  }
  rte_eth_link link{};
  return rte_eth_link_get_nowait(facts_.id, &link) != 0 || link.link_status == RTE_ETH_LINK_UP;
}

Status DpdkPort::health() const {
  if (has_link()) return {};
  const std::string interface = spec_.interface();
  return Status(Code::kSystem, "device " + spec_.device + " has no link" +
                                   (interface.empty() ? "; is its cable or its peer there?"
                                                      : "; 'ip link set " + interface + " up', and so at the other end"));
}

}  // namespace gatun
