// DpdkSpec: what the setting `device` says: which Ethernet device DPDK shall drive, and who this end is on its network.
//
//   DEVICE ADDRESS/PREFIX... [gateway=IP] [mac=MAC] [mtu=BYTES] [eal=ARGUMENT]...
//
//   0000:3b:00.0 10.0.0.2/24 eal=-l eal=2,3         a network card, by its PCI address
//   net_af_packet0,iface=eth1 10.0.0.2/24 fd00::2/64   a virtual device of DPDK, by its name and arguments
//
// Pure text: nothing is opened here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/transport/dpdk_frame.h"
#include "protocols/status.h"

namespace gatun {

struct DpdkSpec {
  struct Address {
    Ip ip;
    uint32_t prefix_bits = 0;
  };

  std::string device;              // devargs
  std::vector<Address> addresses;  // at most one of each family
  std::vector<Ip> gateways;        // likewise
  std::optional<Mac> mac;
  uint32_t mtu = 0;  // 0: the device's
  std::vector<std::string> eal;

  // kInvalidArgument names the word and what was expected.
  static Result<DpdkSpec> parse(const std::string& text);

  // Of packet buffers, for so many received packets held at once.
  uint64_t memory_bytes(uint32_t buffers) const { return uint64_t{buffers + 4096} * (mtu != 0 ? mtu + 512 : 2048); }
  bool pci() const { return device[0] >= '0' && device[0] <= '9'; }
  std::string driver() const;     // "net_af_packet"; "" for a network card
  std::string interface() const;  // of the kernel, below af_packet, af_xdp and pcap; "" if there is none
  const Address* address(bool six) const;
  // Where a packet to this address goes first: there itself, or a gateway. Null: there is no way.
  const Ip* next_hop(const Ip& target) const;
  // The device's own, unless it shares an interface with the kernel, which would answer what is sent to that: then one made
  // from the first IP address.
  Mac own_mac(const Mac& of_device) const;
  // The device with what its driver needs for frames of this MTU, unless the user has said it: af_packet drops and cuts
  // frames that are longer than its buffers, memif spreads them over several and loses some, and af_packet's default passes
  // by the interface's queueing discipline.
  std::string device_for_mtu(uint32_t mtu) const;
  Status fits(uint32_t mtu) const;  // whether the buffers that the user has said hold such frames
  // What whoever chose this device should know; "" if nothing.
  std::string warning() const;

 private:
  bool says_buffers() const;
};

inline constexpr uint32_t kDpdkMtuMin = 576, kDpdkMtuMax = 9216;

// The size of af_packet's buffers, and how many there are. Its ring holds so many bytes of frames unread.
uint32_t af_packet_frame_bytes(uint32_t mtu);
inline constexpr uint32_t kAfPacketRingBytes = 4 << 20;

}  // namespace gatun
