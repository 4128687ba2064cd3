#include "host/transport/dpdk_spec.h"

#include <catch2/catch.hpp>
#include <string>

namespace gatun {
namespace {

DpdkSpec good(const std::string& text) {
  Result<DpdkSpec> spec = DpdkSpec::parse(text);
  CAPTURE(text, spec.status().message());
  REQUIRE(spec.ok());
  return spec.value();
}

std::string complaint(const std::string& text) {
  const Result<DpdkSpec> spec = DpdkSpec::parse(text);
  CAPTURE(text);
  REQUIRE_FALSE(spec.ok());
  REQUIRE(spec.status().code() == Code::kInvalidArgument);
  return spec.status().message();
}

Ip ip_of(const std::string& text) {
  Ip ip;
  REQUIRE(parse_ip(text, &ip));
  return ip;
}

TEST_CASE("parse__a_network_card_with_everything", "[transport]") {
  const DpdkSpec spec =
      good("0000:3b:00.1 10.0.0.2/24  fd00::2/64 gateway=10.0.0.1 mac=02:00:00:00:00:09 mtu=9000 eal=-l eal=2,3");
  REQUIRE(spec.pci());
  REQUIRE(spec.driver() == "");
  REQUIRE(spec.addresses.size() == 2);
  REQUIRE(spec.address(false)->ip.text() == "10.0.0.2");
  REQUIRE(spec.address(true)->prefix_bits == 64);
  REQUIRE(spec.mtu == 9000);
  REQUIRE(spec.mac->text() == "02:00:00:00:00:09");
  REQUIRE(spec.eal == std::vector<std::string>{"-l", "2,3"});
  REQUIRE(spec.warning() == "");
}

TEST_CASE("parse__a_virtual_device", "[transport]") {
  const DpdkSpec spec = good("net_af_packet0,iface=eth1 10.0.0.2/24");
  REQUIRE_FALSE(spec.pci());
  REQUIRE(spec.driver() == "net_af_packet");
  REQUIRE(spec.interface() == "eth1");
  REQUIRE(good("net_vhost0,iface=/run/v.sock 10.0.0.2/24").interface() == "");
}

TEST_CASE("parse__names_the_word_that_is_wrong", "[transport]") {
  using Catch::Contains;
  REQUIRE_THAT(complaint(""), Contains("0000:3b:00.0"));
  REQUIRE_THAT(complaint("eth0 10.0.0.1/24"), Contains("'eth0'") && Contains("net_af_packet0,iface=eth1"));
  REQUIRE_THAT(complaint("net_ring0"), Contains("needs this end's address"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1"), Contains("'10.0.0.1'") && Contains("prefix"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/33"), Contains("prefix"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 10.0.0.2/24"), Contains("one of each"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 gateway=x"), Contains("gateway="));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 gateway=10.9.0.1"), Contains("'10.9.0.1'") && Contains("in the network"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 gateway=fd00::1"), Contains("in the network"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 mac=03:00:00:00:00:01"), Contains("one station"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 mtu=100"), Contains("576"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 mtu=9217"), Contains("9216"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 speed=9"), Contains("'speed=9'"));
  REQUIRE_THAT(complaint("net_ring0 10.0.0.1/24 eal="), Contains("'eal='"));
  REQUIRE_THAT(complaint("net_af_packet0 10.0.0.1/24"), Contains("iface="));
}

TEST_CASE("next_hop__there_or_a_gateway_or_no_way", "[transport]") {
  const DpdkSpec spec = good("net_ring0 10.0.0.2/24 fd00::2/64 gateway=10.0.0.1");
  const Ip near = ip_of("10.0.0.77"), far = ip_of("10.1.0.77"), near6 = ip_of("fd00::77"), far6 = ip_of("fd01::77");
  REQUIRE(*spec.next_hop(near) == near);
  REQUIRE(*spec.next_hop(far) == ip_of("10.0.0.1"));
  REQUIRE(*spec.next_hop(near6) == near6);
  REQUIRE(spec.next_hop(far6) == nullptr);
  REQUIRE(good("net_ring0 10.0.0.2/24").next_hop(near6) == nullptr);
}

TEST_CASE("own_mac__is_not_the_kernels", "[transport]") {
  Mac of_device;
  REQUIRE(parse_mac("52:54:00:00:00:01", &of_device));
  REQUIRE(good("0000:3b:00.0 10.0.0.2/24").own_mac(of_device) == of_device);
  REQUIRE(good("net_af_packet0,iface=v 10.0.0.2/24").own_mac(of_device).text() == "02:67:0a:00:00:02");
  REQUIRE(good("net_af_packet0,iface=v fd00::1:2/64").own_mac(of_device).text() == "02:67:00:01:00:02");
  REQUIRE(good("net_af_packet0,iface=v 10.0.0.2/24 mac=02:00:00:00:00:01").own_mac(of_device).text() == "02:00:00:00:00:01");
}

TEST_CASE("device_for_mtu__af_packet_gets_buffers_that_hold_a_frame", "[transport]") {
  for (const uint32_t mtu : {576u, 1500u, 3000u, 9000u, 9216u}) {
    const uint32_t frame = af_packet_frame_bytes(mtu);
    REQUIRE(frame >= mtu + kEthernetBytes + 66);
    const std::string device = good("net_af_packet0,iface=v 10.0.0.2/24").device_for_mtu(mtu);
    REQUIRE_THAT(device, Catch::Contains(",framesz=" + std::to_string(frame)));
    REQUIRE_THAT(device, Catch::Contains(",blocksz=" + std::to_string(8 * frame)));
    REQUIRE(8 * frame % 4096 == 0);
    REQUIRE_THAT(device, Catch::Contains(",qdisc_bypass=0"));
  }
  REQUIRE(good("net_memif0,role=client 10.0.0.2/24").device_for_mtu(1500) == "net_memif0,role=client,bsize=2048");
  REQUIRE(good("net_memif0,role=client 10.0.0.2/24").device_for_mtu(9000) == "net_memif0,role=client,bsize=9024");
  const DpdkSpec own = good("net_af_packet0,iface=v,framesz=4096,blocksz=4096,framecnt=64,qdisc_bypass=1 10.0.0.2/24");
  REQUIRE(own.device_for_mtu(1500) == own.device);
  REQUIRE(good("net_ring0 10.0.0.2/24").device_for_mtu(9000) == "net_ring0");
}

TEST_CASE("fits__buffers_that_would_lose_frames_are_refused", "[transport]") {
  const auto check = [](const std::string& device, uint32_t mtu) {
    const Status status = good(device + " 10.0.0.2/24").fits(mtu);
    REQUIRE(status.ok() == (std::string(status.message()) == ""));
    return std::string(status.message());
  };
  const std::string packet = "net_af_packet0,iface=v", memif = "net_memif0,role=server";
  for (const uint32_t mtu : {576u, 1500u, 9216u}) {
    for (const std::string& device : {packet, memif, std::string("net_ring0"), std::string("0000:3b:00.0")}) {
      REQUIRE(check(device, mtu) == "");
    }
    REQUIRE(check(packet + ",framesz=" + std::to_string(mtu + 80), mtu) == "");
    REQUIRE(check(memif + ",bsize=" + std::to_string(mtu + 14), mtu) == "");
    REQUIRE_THAT(check(packet + ",framesz=" + std::to_string(mtu + 79), mtu),
                 Catch::Contains("set framesz to " + std::to_string(mtu + 80)));
    REQUIRE_THAT(check(memif + ",bsize=" + std::to_string(mtu + 13), mtu),
                 Catch::Contains("set bsize to " + std::to_string(mtu + 14)));
  }
  REQUIRE(check(packet + ",framecnt=64", 1500) == "");  // leaves the driver's framesz
  REQUIRE_THAT(check(packet + ",framecnt=64", 9000), Catch::Contains("2048 bytes") && Catch::Contains("MTU 9000"));
  REQUIRE_THAT(check(packet + ",framesz=big", 1500), Catch::Contains("buffers of big bytes"));
}

TEST_CASE("warning__of_devices_with_a_trap", "[transport]") {
  using Catch::Contains;
  REQUIRE_THAT(good("net_memif0,role=client 10.0.0.2/24").warning(), Contains("can crash") && Contains("net_vhost"));
  REQUIRE_THAT(good("net_af_xdp0,iface=eth1 10.0.0.2/24").warning(), Contains("all packets of eth1 away"));
  REQUIRE_THAT(good("net_tap0 10.0.0.2/24").warning(), Contains("slower"));
  for (const char* device :
       {"net_af_packet0,iface=v", "net_vhost0,iface=/run/v", "net_virtio_user0,path=/run/v", "0000:3b:00.0"}) {
    REQUIRE(good(std::string(device) + " 10.0.0.2/24").warning() == "");
  }
}

}  // namespace
}  // namespace gatun
