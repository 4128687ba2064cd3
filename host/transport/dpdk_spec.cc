#include "host/transport/dpdk_spec.h"

#include <algorithm>

#include "host/base/settings.h"

namespace gatun {
namespace {

// TPACKET_V2 puts its own header and the link-layer address before a frame, and the kernel may leave a VLAN tag in it.
constexpr uint32_t kAfPacketOverhead = 128;
constexpr uint32_t kAfPacketHeaders = 66;      // of these, what stands before each frame
constexpr uint32_t kDriversFrameBytes = 2048;  // of af_packet's and memif's buffers if nothing else is said
constexpr uint32_t kPageBytes = 4096;

Status wrong(const std::string& text, const std::string& word, const std::string& expected) {
  return Status(Code::kInvalidArgument, "device is '" + text + "': " + (word.empty() ? "" : "'" + word + "' is not ") +
                                            expected +
                                            " (DEVICE ADDRESS/PREFIX [gateway=IP] [mac=MAC] [mtu=BYTES] [eal=ARGUMENT])");
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

bool is_pci(std::string_view text) {
  constexpr std::string_view kShape = "hhhh:hh:hh.d";
  text = text.substr(0, text.find(','));
  if (text.size() != kShape.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    const bool hex = digit || (text[i] >= 'a' && text[i] <= 'f') || (text[i] >= 'A' && text[i] <= 'F');
    if (kShape[i] == 'h' ? !hex : kShape[i] == 'd' ? !digit : text[i] != kShape[i]) return false;
  }
  return true;
}

bool is_virtual(std::string_view text) {
  return text.starts_with("net_") && text.size() > 4;
}

// The value of one of the device's arguments; "" if it has none.
std::string argument(const std::string& device, const std::string& key) {
  const size_t at = device.find("," + key + "=");
  if (at == device.npos) return "";
  const size_t begin = at + key.size() + 2;
  return device.substr(begin, device.find(',', begin) - begin);
}

bool has_family(const std::vector<Ip>& ips, bool six) {
  return std::any_of(ips.begin(), ips.end(), [six](const Ip& ip) { return ip.six == six; });
}

// "" or what was expected.
std::string take_word(const std::string& word, DpdkSpec* spec) {
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals), value = equals == word.npos ? "" : word.substr(equals + 1);
  if (equals == word.npos) {
    const size_t slash = word.find('/');
    DpdkSpec::Address address;
    if (slash == word.npos || !parse_ip(word.substr(0, slash), &address.ip) ||
        !parse_number(std::string_view(word).substr(slash + 1), 1, address.ip.six ? 128 : 32, &address.prefix_bits)) {
      return "an address with its prefix, such as 10.0.0.2/24 or fd00::2/64";
    }
    if (spec->address(address.ip.six)) return "the only address of its family; one of each is taken";
    spec->addresses.push_back(address);
    return "";
  }
  if (key == "gateway") {
    Ip ip;
    if (!parse_ip(value, &ip)) return "gateway= and an IP address";
    if (has_family(spec->gateways, ip.six)) return "the only gateway of its family; one of each is taken";
    spec->gateways.push_back(ip);
    return "";
  }
  if (key == "mac") {
    Mac mac;
    if (!parse_mac(value, &mac) || (mac.bytes[0] & std::byte{1}) != std::byte{0}) {
      return "mac= and the Ethernet address of one station, such as 02:00:00:00:00:07";
    }
    spec->mac = mac;
    return "";
  }
  if (key == "mtu") {
    return parse_number(value, kDpdkMtuMin, kDpdkMtuMax, &spec->mtu) ? "" : "mtu= and a number from 576 to 9216";
  }
  if (key == "eal" && !value.empty()) {
    spec->eal.push_back(value);
    return "";
  }
  return "an address, gateway=, mac=, mtu= or eal=";
}

}  // namespace

Result<DpdkSpec> DpdkSpec::parse(const std::string& text) {
  const std::vector<std::string> words = words_of(text);
  DpdkSpec spec;
  if (words.empty() || (!is_pci(words[0]) && !is_virtual(words[0]))) {
    return wrong(text, words.empty() ? "" : words[0],
                 "a PCI address such as 0000:3b:00.0 or a virtual device such as net_af_packet0,iface=eth1");
  }
  spec.device = words[0];
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string expected = take_word(words[i], &spec);
    if (!expected.empty()) return wrong(text, words[i], expected);
  }
  if (spec.addresses.empty()) return wrong(text, "", "it needs this end's address on the device's network");
  for (const Ip& gateway : spec.gateways) {
    const Address* address = spec.address(gateway.six);
    if (!address || !in_prefix(gateway, address->ip, address->prefix_bits)) {
      return wrong(text, gateway.text(), "a gateway in the network of an address that is given");
    }
  }
  if (spec.driver() == "net_af_packet" && spec.interface().empty()) {
    return wrong(text, spec.device, "complete: net_af_packet needs the interface to use, as ,iface=eth1");
  }
  return spec;
}

std::string DpdkSpec::driver() const {
  if (pci()) return "";
  std::string name = device.substr(0, device.find(','));
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.pop_back();
  return name;
}

std::string DpdkSpec::interface() const {
  const std::string name = driver();
  return name == "net_af_packet" || name == "net_af_xdp" || name == "net_pcap" ? argument(device, "iface") : "";
}

const DpdkSpec::Address* DpdkSpec::address(bool six) const {
  const auto found =
      std::find_if(addresses.begin(), addresses.end(), [six](const Address& address) { return address.ip.six == six; });
  return found == addresses.end() ? nullptr : &*found;
}

const Ip* DpdkSpec::next_hop(const Ip& target) const {
  const Address* own = address(target.six);
  if (!own) return nullptr;
  if (in_prefix(target, own->ip, own->prefix_bits)) return &target;
  for (const Ip& gateway : gateways) {
    if (gateway.six == target.six) return &gateway;
  }
  return nullptr;
}

Mac DpdkSpec::own_mac(const Mac& of_device) const {
  if (mac) return *mac;
  if (interface().empty()) return of_device;
  const Ip& ip = addresses[0].ip;
  Mac made{{std::byte{0x02}, std::byte{0x67}}};  // locally administered, and g for Gatun
  std::copy_n(ip.bytes.begin() + (ip.six ? 12 : 0), 4, made.bytes.begin() + 2);
  return made;
}

uint32_t af_packet_frame_bytes(uint32_t mtu) {
  const uint32_t bytes = mtu + kEthernetBytes + kAfPacketOverhead;
  return (bytes + 511) / 512 * 512;  // eight of them fill whole pages, as the kernel wants its blocks
}

bool DpdkSpec::says_buffers() const {
  return !argument(device, "framesz").empty() || !argument(device, "blocksz").empty() ||
         !argument(device, "framecnt").empty() || !argument(device, "bsize").empty();
}

std::string DpdkSpec::device_for_mtu(uint32_t bytes) const {
  std::string full = device;
  if (driver() == "net_memif" && !says_buffers()) {
    return full + ",bsize=" + std::to_string(std::max(kDriversFrameBytes, (bytes + kEthernetBytes + 63) / 64 * 64));
  }
  if (driver() != "net_af_packet") return device;
  if (!says_buffers()) {
    const uint32_t frame = af_packet_frame_bytes(bytes);
    const uint32_t block = frame * (kPageBytes / 512);
    full += ",framesz=" + std::to_string(frame) + ",blocksz=" + std::to_string(block) +
            ",framecnt=" + std::to_string(kAfPacketRingBytes / block * (kPageBytes / 512));
  }
  if (argument(device, "qdisc_bypass").empty()) full += ",qdisc_bypass=0";
  return full;
}

Status DpdkSpec::fits(uint32_t bytes) const {
  const bool packet = driver() == "net_af_packet";
  if (!says_buffers() || (!packet && driver() != "net_memif")) return {};
  const std::string key = packet ? "framesz" : "bsize", given = argument(device, key);
  const uint32_t needed = bytes + kEthernetBytes + (packet ? kAfPacketHeaders : 0);
  uint32_t size = kDriversFrameBytes;
  if ((given.empty() || parse_number(given, 1, UINT32_MAX, &size)) && size >= needed) return {};
  return Status(Code::kInvalidArgument, "device " + device + ": its buffers of " + (given.empty() ? "2048" : given) +
                                            " bytes do not hold the frames of MTU " + std::to_string(bytes) +
                                            ", which it would lose without a word; set " + key + " to " +
                                            std::to_string(needed) + " or more, or leave it out");
}

std::string DpdkSpec::warning() const {
  const std::string name = driver();
  if (name == "net_memif") {
    return "device net_memif can crash this process when the peer's process dies in the middle of traffic (a fault of "
           "DPDK's driver); net_vhost with net_virtio_user is as fast and does not";
  }
  if (name == "net_af_xdp") {
    return "device net_af_xdp takes all packets of " + interface() +
           " away from the kernel, those of the control channel too; net_af_packet leaves them";
  }
  if (name == "net_tap") return "device net_tap is many times slower than net_af_packet, and has an MTU of 1500 at most";
  return "";
}

}  // namespace gatun
