#include "tests/conformance/harness_dpdk.h"

#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "host/transport/dpdk_module.h"
#include "host/transport/udp.h"
#include "tests/conformance/test_net.h"

namespace gatun::conformance {

namespace {

constexpr uint16_t kPort = 7117;
constexpr TimeNs kAnswerWithin = 5 * kSecond;

// How a kind names its ends.
struct Ends {
  bool six = false, hub_is_socket = false, links_are_sockets = false, pair = false;
  bool memif = false;
  int server = 0;  // of the pair: the end with vhost, or memif's server

  std::string ip(int end) const { return (six ? "fd77::" : "10.77.0.") + std::to_string(1 + end); }
  std::string address(int end) const { return ip(end) + (six ? "/64" : "/24"); }
};

Ends ends_of(const std::string& kind) {
  return {.six = kind == "dpdk6" || kind == "vhost6",
          .hub_is_socket = kind == "dpdk_link",
          .links_are_sockets = kind == "dpdk_hub",
          .pair = kind == "vhost" || kind == "vhost6" || kind == "virtio" || kind == "memif",
          .memif = kind == "memif",
          .server = kind == "virtio" ? 1 : 0};
}

class DpdkHarness : public Harness {
 public:
  DpdkHarness(const std::string& kind, const HarnessOptions& options) : ends_(ends_of(kind)), mtu_(options.mtu) {
    if (ends_.pair) {
      socket_path_ = "/tmp/gatun-vhost-" + std::to_string(::getpid()) + "-" + std::to_string(number_);
      if (ends_.server == 1) pair_device_ = open(device_of(1), options.buffers);
    } else {
      net_ = std::make_unique<TestNet>(options.mtu);
    }
    make_hub(options);
    for (int i = 0; i < options.links; ++i) make_link(i, options);
    memory_.resize(size_t{kPlaces} * static_cast<size_t>(options.links + 1) * payload_bytes_max());
  }
  ~DpdkHarness() override {
    links_.clear();
    hub_.reset();
    pair_device_.reset();
    devices_.clear();
    if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
  }
  Transport& hub() override { return *hub_; }
  Transport& link(int index) override { return *links_[static_cast<size_t>(index)]; }
  uint32_t payload_bytes_max() override { return links_[0]->caps().payload_bytes_max; }
  std::byte* hub_place(uint32_t place) override { return place_of(0, place); }
  std::byte* link_place(int link, uint32_t place) override { return place_of(static_cast<size_t>(link) + 1, place); }

 private:
  std::byte* place_of(size_t owner, uint32_t place) {
    return memory_.data() + (kPlaces * owner + place % kPlaces) * payload_bytes_max();
  }

  void in_net(const std::function<void()>& work) {
    if (net_) return net_->run(work);
    work();
  }

  std::shared_ptr<DpdkDevice> open(const std::string& text, uint32_t buffers) {
    std::shared_ptr<DpdkDevice> device;
    std::string why;
    in_net([&] {
      auto opened = open_dpdk(text, {.lanes = 1, .buffers = buffers + 2048});
      if (opened.ok()) device = opened.value();
      why = opened.status().message();
    });
    CAPTURE(text, why);
    REQUIRE(device != nullptr);
    devices_.push_back(device);
    return device;
  }

  std::string device_of(int end) const {
    if (!ends_.pair) {
      // One interface each: several devices of one process on the same share its frames among them.
      return "net_af_packet" + std::to_string(end) + ",iface=" + (end == 0 ? "va" : net_->add_end()) + " " +
             ends_.address(end);
    }
    const std::string rest = ends_.address(end) + " mtu=" + std::to_string(mtu_);
    if (ends_.memif) {
      return "net_memif" + std::to_string(2 * number_ + end) + ",id=0,role=" + (end == ends_.server ? "server" : "client") +
             ",socket=" + socket_path_ + " " + rest;
    }
    if (end == ends_.server) return "net_vhost0,iface=" + socket_path_ + " " + rest;
    return "net_virtio_user0,path=" + socket_path_ + ",queue_size=1024 mac=02:00:00:00:77:02 " + rest;
  }

  void make_hub(const HarnessOptions& options) {
    if (ends_.hub_is_socket) {
      REQUIRE(net_->command("ip addr add " + ends_.address(0) + " dev va"));
      net_->run([&] {
        auto hub = UdpHub::make(Endpoint::parse(ends_.ip(0), kPort).value(), udp_options(options));
        if (hub.ok()) hub_ = std::move(hub.value());
      });
    } else {
      auto hub = open(device_of(0), options.buffers)->make_hub(kPort, options.buffers, 1024);
      if (hub.ok()) hub_ = std::move(hub.value());
    }
    REQUIRE(hub_ != nullptr);
  }

  void make_link(int index, const HarnessOptions& options) {
    const Endpoint hub = Endpoint::parse(ends_.ip(0), kPort).value();
    if (ends_.links_are_sockets) {
      if (index == 0) REQUIRE(net_->command("ip addr add " + ends_.address(1) + " dev vb"));
      net_->run([&] {
        auto link = UdpLink::make(hub, udp_options(options));
        if (link.ok()) links_.push_back(std::move(link.value()));
      });
    } else {
      std::shared_ptr<DpdkDevice> device = pair_device_ ? pair_device_ : open(device_of(index + 1), options.buffers);
      if (ends_.pair) pair_device_ = device;
      links_.push_back(connect(*device, hub, options.buffers));
    }
    REQUIRE(links_.size() == static_cast<size_t>(index) + 1);
  }

  // The link asks where the hub is, and the hub answers when it receives.
  std::unique_ptr<Transport> connect(DpdkDevice& device, const Endpoint& hub, uint32_t buffers) {
    std::unique_ptr<Transport> link;
    std::string why;
    std::atomic<bool> done{false};
    std::thread asker([&] {
      auto made = device.make_link(hub, buffers, now_ns() + kAnswerWithin);
      if (made.ok()) link = std::move(made.value());
      why = made.status().message();
      done = true;
    });
    RxPacket burst[kBurst];
    int received = 0;
    while (!done) received += hub_->receive(burst);
    asker.join();
    CAPTURE(why);
    REQUIRE(link != nullptr);
    REQUIRE(received == 0);
    return link;
  }

  // A veth passes what the kernel merged on unsplit, which a network does not.
  static UdpOptions udp_options(const HarnessOptions& options) {
    return {.buffers = options.buffers, .socket_bytes = 4 << 20, .gso = false};
  }

  static inline int made_ = 0;
  const int number_ = made_++;  // memif keeps names and sockets of devices that were removed
  const Ends ends_;
  const uint32_t mtu_;
  std::unique_ptr<TestNet> net_;
  std::string socket_path_;
  std::vector<std::shared_ptr<DpdkDevice>> devices_;
  std::shared_ptr<DpdkDevice> pair_device_;  // that all links share
  std::unique_ptr<Transport> hub_;
  std::vector<std::unique_ptr<Transport>> links_;
  std::vector<std::byte> memory_;
};

}  // namespace

bool is_dpdk(const std::string& kind) {
  return kind.starts_with("dpdk") || ends_of(kind).pair;
}

std::string missing_for_dpdk(const std::string& kind) {
#if !GATUN_HAVE_DPDK
  return "Gatun was built without DPDK (libdpdk-dev)";
#endif
  return ends_of(kind).pair ? "" : TestNet::missing();
}

std::unique_ptr<Harness> make_dpdk_harness(const std::string& kind, const HarnessOptions& options) {
  return std::make_unique<DpdkHarness>(kind, options);
}

}  // namespace gatun::conformance
