// Memory that is lent to a transport: what is in it is sent from where it is, and is free once it is taken back.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tests/conformance/conformance_case.h"

namespace gatun::conformance {
namespace {

// Memory that a test can really give back: whoever reads it then meets no mapping.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    data_ = static_cast<std::byte*>(memory);
  }
  ~Pages() { unmap(); }
  void unmap() {
    if (data_) ::munmap(std::exchange(data_, nullptr), bytes_);
  }
  std::span<std::byte> all() const { return {data_, bytes_}; }
  std::byte* at(uint32_t place, uint32_t size) const { return data_ + size_t{place} * size; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

TxPacket lent_packet(Harness& harness, const Pages& pages, uint32_t number, uint32_t size) {
  const uint32_t place = number % kPlaces;
  TxPacket packet = make_packet({0, number, size}, pages.at(place, harness.payload_bytes_max()), 0);
  packet.seen_at = harness.link_place(0, place);
  return packet;
}

void poison(Transport& link) {
  std::fill(link.arena(0).begin(), link.arena(0).end(), std::byte{0xa5});
}

bool poisoned(Transport& link) {
  return std::all_of(link.arena(0).begin(), link.arena(0).end(), [](std::byte byte) { return byte == std::byte{0xa5}; });
}

}  // namespace

// Where that can be, the sender's arena is not touched, and the receiver finds the payload where it finds one from the
// arena.
CONFORMANCE_CASE(lend__is_sent_from_where_it_is) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  Transport& link = harness->link(0);
  const uint32_t size = harness->payload_bytes_max();
  Pages pages(size_t{kPlaces} * size);
  REQUIRE(link.lend(pages.all()).ok());
  if (!link.caps().lends) return;
  uintptr_t first = 0;
  const TxPacket shown = make_packet({0, 0, size}, harness->link_place(0, 0), 0);
  REQUIRE(link.send({&shown, 1}) == 1);
  REQUIRE(receive_some(harness->hub(), 1,
                       [&](const RxPacket& packet) { first = reinterpret_cast<uintptr_t>(packet.payload); }) == 1);
  poison(link);
  for (uint32_t burst = 0; burst < 8; ++burst) {
    std::vector<TxPacket> packets;
    for (uint32_t i = 0; i < kBurst; ++i) {
      packets.push_back(lent_packet(*harness, pages, burst * kBurst + i, i % 4 == 3 ? 40 + i : size));
    }
    send_all(link, packets, [] {});
    REQUIRE(receive_some(harness->hub(), kBurst, [&](const RxPacket& packet) {
              REQUIRE(intact(packet));
              REQUIRE(packet.buffer == kNoBuffer);
              const size_t offset = size_t{label_of(packet).number % kPlaces} * size;
              REQUIRE(reinterpret_cast<uintptr_t>(packet.payload) == first + offset);
            }) == kBurst);
  }
  REQUIRE(poisoned(link));
  REQUIRE(link.take_back(pages.all()).ok());
}

// What was sent before arrives whole although nobody has looked for it yet and its memory is gone.
CONFORMANCE_CASE(take_back__waits_for_what_was_sent) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  Transport& link = harness->link(0);
  if (!link.caps().lends) return;
  const uint32_t size = harness->payload_bytes_max();
  for (int round = 0; round < 5; ++round) {
    Pages pages(size_t{kPlaces} * size);
    REQUIRE(link.lend(pages.all()).ok());
    std::vector<TxPacket> packets;
    for (uint32_t i = 0; i < kBurst; ++i) packets.push_back(lent_packet(*harness, pages, i, size));
    send_all(link, packets, [] {});
    REQUIRE(link.take_back(pages.all()).ok());
    pages.unmap();
    REQUIRE(link.health().ok());
    REQUIRE(receive_some(harness->hub(), kBurst, [&](const RxPacket& packet) { REQUIRE(intact(packet)); }) == kBurst);
  }
}

// A packet that names memory which is not lent any more is sent by a copy.
CONFORMANCE_CASE(take_back__then_it_is_copied) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  Transport& link = harness->link(0);
  if (!link.caps().lends) return;
  const uint32_t size = harness->payload_bytes_max();
  Pages first(size_t{kPlaces} * size), second(size_t{kPlaces} * size);
  REQUIRE(link.lend(first.all()).ok());
  REQUIRE(link.lend(second.all()).ok());
  REQUIRE(link.take_back(first.all()).ok());
  poison(link);
  for (const bool gone : {true, false}) {
    const TxPacket packet = lent_packet(*harness, gone ? first : second, 5, size);
    REQUIRE(link.send({&packet, 1}) == 1);
    if (gone) first.unmap();
    REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& received) {
              REQUIRE(intact(received));
              REQUIRE((received.buffer != kNoBuffer) == gone);
            }) == 1);
  }
  REQUIRE(poisoned(link));
}

// The other end is gone, so that what was sent can never be complete: the link ends, and the memory is free all the same.
CONFORMANCE_CASE(take_back__from_a_link_whose_other_end_is_gone) {
  auto harness = make_harness(kind, {.links = 2});
  introduce(*harness, 2);
  Transport& link = harness->link(0);
  if (!link.caps().lends) return;
  const uint32_t size = harness->payload_bytes_max();
  Pages pages(size_t{kPlaces} * size);
  REQUIRE(link.lend(pages.all()).ok());
  harness->hub().forget(harness->peers[0]);
  const TxPacket packet = lent_packet(*harness, pages, 1, size);
  REQUIRE(link.send({&packet, 1}) == 1);
  REQUIRE(link.take_back(pages.all()).ok());
  pages.unmap();
  REQUIRE(!link.health().ok());
  const TxPacket other = make_packet({1, 2, size}, harness->link_place(1, 0), 0);
  REQUIRE(harness->link(1).send({&other, 1}) == 1);
  REQUIRE(receive_some(harness->hub(), 1, [&](const RxPacket& received) { REQUIRE(intact(received)); }) == 1);
}

CONFORMANCE_CASE(take_all_back__ends_the_link) {
  auto harness = make_harness(kind, {.links = 1});
  introduce(*harness, 1);
  Transport& link = harness->link(0);
  if (!link.caps().lends) return;
  const uint32_t size = harness->payload_bytes_max();
  link.take_all_back();  // of nothing
  REQUIRE(link.health().ok());
  Pages first(size_t{kPlaces} * size), second(size);
  REQUIRE(link.lend(first.all()).ok());
  REQUIRE(link.lend(second.all()).ok());
  std::vector<TxPacket> packets;
  for (uint32_t i = 0; i < kBurst; ++i) packets.push_back(lent_packet(*harness, first, i, size));
  send_all(link, packets, [] {});
  link.take_all_back();
  std::fill(first.all().begin(), first.all().end(), std::byte{0xee});
  receive_some(harness->hub(), kBurst, [&](const RxPacket& packet) { REQUIRE(intact(packet)); });  // or nothing at all
  first.unmap();
  second.unmap();
  REQUIRE(!link.health().ok());
  const TxPacket late = make_packet({0, 1, size}, harness->link_place(0, 0), 0);
  REQUIRE(link.send({&late, 1}) == 1);
  REQUIRE(link.stats().dropped_send > 0);
}

}  // namespace gatun::conformance
