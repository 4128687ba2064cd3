// The transports that the suite runs over.
#include <catch2/catch.hpp>

#include "host/transport/lossy.h"
#include "host/transport/shm.h"
#include "host/transport/udp.h"
#include "host/transport/verbs.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/harness_dpdk.h"

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
    auto hub = UdpHub::make(Endpoint::parse(ip, 0).value(), udp);
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

// The hub is at one end of a cable with two RDMA devices, the links are at the other.
class VerbsHarness : public Harness {
 public:
  static std::string missing() {
    Result<VerbsDevices> devices = open_verbs();
    if (!devices.ok()) return devices.status().message();
    for (const VerbsGid& gid : {hub_gid(), link_gid()}) {
      const Result<VerbsDevice*> found = find_verbs(devices.value(), gid);
      if (!found.ok()) return found.status().message();
    }
    return "";
  }

  explicit VerbsHarness(const HarnessOptions& options) : payload_(options.payload_bytes) {
    auto devices = open_verbs();
    REQUIRE(devices.ok());
    devices_ = std::move(devices.value());
    auto hub = find_verbs(devices_, hub_gid())
                   .value()
                   ->make_hub({.links_max = 16, .payload_bytes_max = payload_, .buffers = options.buffers});
    REQUIRE(hub.ok());
    hub_ = std::move(hub.value());
    const ShmShape shape = ShmShape::make(1, kPlaces, payload_);
    results_.resize(shape.result_bytes);
    auto group = hub_->make_group(results_);
    REQUIRE(group.ok());
    for (int i = 0; i < options.links; ++i) {
      auto link = find_verbs(devices_, link_gid()).value()->make_link(shape, link_gid(), hub_gid());
      REQUIRE(link.ok());
      auto port = hub_->make_port(VerbsCard::decode(link.value()->card()).value(), group.value());
      REQUIRE(port.ok());
      REQUIRE(link.value()->connect(port.value()->card()).ok());
      REQUIRE(hub_->attach(std::move(port.value())) != kNoPeer);
      links_.push_back(std::move(link.value()));
    }
  }
  Transport& hub() override { return *hub_; }
  Transport& link(int index) override { return *links_[index]; }
  uint32_t payload_bytes_max() override { return payload_; }
  std::byte* hub_place(uint32_t place) override { return results_.data() + size_t{place % kPlaces} * payload_; }
  std::byte* link_place(int link, uint32_t place) override {
    return links_[link]->arena(0).data() + size_t{place % kPlaces} * payload_;
  }

 private:
  static VerbsGid hub_gid() { return gid_of(Endpoint::parse("10.77.0.1", 0).value()); }
  static VerbsGid link_gid() { return gid_of(Endpoint::parse("10.77.0.2", 0).value()); }

  uint32_t payload_;
  VerbsDevices devices_;
  std::vector<std::byte> results_;
  std::unique_ptr<VerbsHub> hub_;
  std::vector<std::unique_ptr<VerbsLink>> links_;
};

// Another harness's transports, each behind a Lossy without faults.
class LossyHarness : public Harness {
 public:
  LossyHarness(std::unique_ptr<Harness> inner, const HarnessOptions& options) : inner_(std::move(inner)) {
    hub_ = wrap(&inner_->hub());
    for (int i = 0; i < options.links; ++i) links_.push_back(wrap(&inner_->link(i)));
  }
  Transport& hub() override { return *hub_; }
  Transport& link(int index) override { return *links_[index]; }
  uint32_t payload_bytes_max() override { return inner_->payload_bytes_max(); }
  std::byte* hub_place(uint32_t place) override { return inner_->hub_place(place); }
  std::byte* link_place(int link, uint32_t place) override { return inner_->link_place(link, place); }

 private:
  static std::unique_ptr<Lossy> wrap(Transport* transport) {
    auto lossy = Lossy::make(transport, {});
    REQUIRE(lossy.ok());
    return std::move(lossy.value());
  }
  std::unique_ptr<Harness> inner_;
  std::unique_ptr<Lossy> hub_;
  std::vector<std::unique_ptr<Lossy>> links_;
};

}  // namespace

std::string missing_for(const std::string& kind) {
  if (kind == "verbs") return VerbsHarness::missing();
  if (is_dpdk(kind)) return missing_for_dpdk(kind);
  if (kind != "udp6") return "";
  auto hub = UdpHub::make(Endpoint::parse("::1", 0).value(), {});
  return hub.ok() ? "" : hub.status().message();
}

std::unique_ptr<Harness> make_harness(const std::string& kind, const HarnessOptions& options) {
  if (is_dpdk(kind)) return make_dpdk_harness(kind, options);
  if (kind == "udp4") return std::make_unique<UdpHarness>("127.0.0.1", options);
  if (kind == "udp6") return std::make_unique<UdpHarness>("::1", options);
  if (kind == "lossy") return std::make_unique<LossyHarness>(make_harness("udp4", options), options);
  if (kind == "shm") return std::make_unique<ShmHarness>(options);
  if (kind == "verbs") return std::make_unique<VerbsHarness>(options);
  FAIL("no such kind: " << kind);
  return nullptr;
}

}  // namespace gatun::conformance
