// The transports that the suite runs over.
#include <catch2/catch.hpp>
#include <cstdio>

#include "host/transport/shm.h"
#include "host/transport/udp.h"
#include "tests/conformance/harness.h"

namespace gatun::conformance {

namespace {

// Payload places in plain memory, for transports that take payloads from anywhere.
class Places {
 public:
  Places(int owners, uint32_t bytes) : bytes_(bytes), memory_(size_t{kPlaces} * owners * bytes) {}
  std::byte* at(int owner, uint32_t place) { return memory_.data() + (size_t{kPlaces} * owner + place % kPlaces) * bytes_; }

 private:
  uint32_t bytes_;
  std::vector<std::byte> memory_;
};

class UdpHarness : public Harness {
 public:
  UdpHarness(const std::string& ip, const HarnessOptions& options) {
    UdpOptions udp;
    udp.buffers = options.buffers;
    udp.socket_bytes = 4 << 20;
    auto hub = UdpHub::make(SocketAddress::parse(ip, 0).value(), udp);
    REQUIRE(hub.ok());
    hub_ = std::move(hub.value());
    for (int i = 0; i < options.links; ++i) {
      auto link = UdpLink::make(hub_->local(), udp);
      REQUIRE(link.ok());
      links_.push_back(std::move(link.value()));
    }
    places_ = std::make_unique<Places>(options.links + 1, payload_bytes_max());
  }
  Transport& hub() override { return *hub_; }
  Transport& link(int index) override { return *links_[index]; }
  uint32_t payload_bytes_max() override { return links_[0]->caps().payload_bytes_max; }
  std::byte* hub_place(uint32_t place) override { return places_->at(0, place); }
  std::byte* link_place(int link, uint32_t place) override { return places_->at(link + 1, place); }

 private:
  std::unique_ptr<UdpHub> hub_;
  std::vector<std::unique_ptr<UdpLink>> links_;
  std::unique_ptr<Places> places_;
};

class ShmHarness : public Harness {
 public:
  explicit ShmHarness(const HarnessOptions& options) : payload_(options.payload_bytes) {
    auto hub = ShmHub::make({.links_max = 16, .payload_bytes_max = payload_, .buffers = options.buffers});
    REQUIRE(hub.ok());
    hub_ = std::move(hub.value());
    const ShmShape shape = ShmShape::make(1, kPlaces, payload_);
    auto results = ShmArena::make(shape.result_bytes);
    REQUIRE(results.ok());
    results_ = results.value();
    for (int i = 0; i < options.links; ++i) {
      ShmTicket ticket;
      auto port = ShmPort::make(shape, results_, &ticket);
      REQUIRE(port.ok());
      REQUIRE(hub_->attach(std::move(port.value())) != kNoPeer);
      auto link = ShmLink::make(std::move(ticket));
      REQUIRE(link.ok());
      links_.push_back(std::move(link.value()));
    }
  }
  Transport& hub() override { return *hub_; }
  Transport& link(int index) override { return *links_[index]; }
  uint32_t payload_bytes_max() override { return payload_; }
  std::byte* hub_place(uint32_t place) override { return results_->bytes().data() + size_t{place % kPlaces} * payload_; }
  std::byte* link_place(int link, uint32_t place) override {
    return links_[link]->arena(0).data() + size_t{place % kPlaces} * payload_;
  }

 private:
  uint32_t payload_;
  std::unique_ptr<ShmHub> hub_;
  std::shared_ptr<ShmArena> results_;
  std::vector<std::unique_ptr<ShmLink>> links_;
};

bool has_udp6() {
  static const bool there = [] {
    auto hub = UdpHub::make(SocketAddress::parse("::1", 0).value(), {});
    if (!hub.ok()) std::fprintf(stderr, "skipped: udp6: %s\n", hub.status().message());
    return hub.ok();
  }();
  return there;
}

}  // namespace

std::vector<std::string> kinds() {
  std::vector<std::string> all{"udp4"};
  if (has_udp6()) all.push_back("udp6");
  all.push_back("shm");
  return all;
}

std::unique_ptr<Harness> make_harness(const std::string& kind, const HarnessOptions& options) {
  if (kind == "udp4") return std::make_unique<UdpHarness>("127.0.0.1", options);
  if (kind == "udp6") return std::make_unique<UdpHarness>("::1", options);
  if (kind == "shm") return std::make_unique<ShmHarness>(options);
  FAIL("no such kind: " << kind);
  return nullptr;
}

}  // namespace gatun::conformance
