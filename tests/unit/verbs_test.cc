#include "host/transport/verbs.h"

#include <catch2/catch.hpp>

namespace gatun {
namespace {

VerbsGid gid(const char* ip) {
  return gid_of(Endpoint::parse(ip, 0).value());
}

VerbsCard card() {
  return {.gid = gid("10.77.0.2"),
          .peer_gid = gid("fd00::1"),
          .queue_pair = 0xabcdef,
          .first_packet = 0x123456,
          .mtu_bytes = 4096,
          .memory = 0x7f00deadbeef0000,
          .key = 0x1234,
          .shape = ShmShape::make(2, 16, 65536)};
}

}  // namespace

TEST_CASE("gid_of__maps_ipv4_and_takes_ipv6_as_it_is", "[verbs]") {
  CHECK(gid("10.77.0.1") == VerbsGid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1});
  CHECK(gid_text(gid("10.77.0.1")) == "10.77.0.1");
  CHECK(gid_text(gid("fd00::1")) == "fd00::1");
  // A link-local address of a card whose hardware address has ff at its third byte is not an IPv4 address.
  CHECK(gid_text(gid("fe80::80c1:8ff:fe91:4416")) == "fe80::80c1:8ff:fe91:4416");
  CHECK(gid_text({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0xff, 0xff, 0xfe, 0, 0, 1}) == "fe80::200:ffff:fe00:1");
}

TEST_CASE("verbs_card__comes_back_as_it_went", "[verbs]") {
  const Result<VerbsCard> back = VerbsCard::decode(card().encode());
  REQUIRE(back.ok());
  CHECK(back.value() == card());
}

TEST_CASE("verbs_card__refuses_any_other_text", "[verbs]") {
  const std::string good = card().encode();
  for (size_t length = 0; length < good.size(); ++length) CHECK_FALSE(VerbsCard::decode(good.substr(0, length)).ok());
  CHECK_FALSE(VerbsCard::decode(good + "00").ok());
  CHECK_FALSE(VerbsCard::decode("02" + good.substr(2)).ok());
  CHECK_FALSE(VerbsCard::decode("xy" + good.substr(2)).ok());
  VerbsCard impossible = card();
  impossible.shape.slots = 3;
  CHECK_FALSE(VerbsCard::decode(impossible.encode()).ok());
}

}  // namespace gatun
