// Topology: hosts, switches and the links between them, and which ways through them are shortest.
//
// Devices are numbered: first the hosts, then the switches. A host has one link, to its leaf. Link l is the ports 2l (from
// its first end) and 2l + 1. Among ports that lead equally near, a flow's hash decides, at each switch anew (ECMP).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/net/units.h"
#include "protocols/status.h"

namespace gatun::net {

struct Link {
  uint32_t a = 0, b = 0;
  uint32_t gbps = 10;
  TimePs delay = kPsPerUs;
};

// Of leaf-spine and clos3. over_subscription: what the hosts of a leaf can send over what goes up from it.
struct Shape {
  uint32_t hosts = 64, hosts_per_leaf = 16, leaves_per_pod = 4;
  uint32_t spines = 0;  // of a leaf (clos3: switches above the leaves of a pod); 0: as many as the over-subscription asks
  uint32_t over_subscription = 1;
  uint32_t gbps = 10, fabric_gbps = 10;
  TimePs delay = kPsPerUs;
};

class Topology {
 public:
  // The links decide everything else. Error: a host without exactly one link, or devices that nothing connects.
  static Result<Topology> make(uint32_t hosts, uint32_t switches, std::vector<Link> links);
  // Every leaf is linked to every spine.
  static Result<Topology> leaf_spine(const Shape& shape);
  // Pods of leaves and aggregation switches, fully linked; aggregation switch i of each pod is linked to group i of cores.
  static Result<Topology> clos3(const Shape& shape);
  // {"hosts": ["a", "b"], "links": [{"ends": ["a", "s"], "gbps": 10, "delay_us": 1}]}; other names are switches.
  static Result<Topology> read(const std::string& path, const Shape& defaults);

  uint32_t hosts() const { return hosts_; }
  uint32_t devices() const { return hosts_ + switches_; }
  bool is_host(uint32_t device) const { return device < hosts_; }
  const std::vector<Link>& links() const { return links_; }
  uint32_t nic(uint32_t host) const { return nic_[host]; }    // port
  uint32_t leaf(uint32_t host) const { return leaf_[host]; }  // device
  bool is_leaf(uint32_t device) const { return is_leaf_[device]; }
  uint32_t host_port(uint32_t host) const { return nic_[host] ^ 1; }  // of the leaf, to the host
  uint32_t to(uint32_t port) const { return port % 2 == 0 ? links_[port / 2].b : links_[port / 2].a; }
  uint32_t from(uint32_t port) const { return to(port ^ 1); }
  bool is_fabric(uint32_t port) const { return !is_host(to(port)) && !is_host(from(port)); }

  uint32_t hops(uint32_t from, uint32_t to) const { return hops_[(from - hosts_) * switches_ + (to - hosts_)]; }
  // The ports of a switch that lead nearer to another switch.
  std::span<const uint32_t> nearer(uint32_t from, uint32_t to) const {
    const uint32_t* range = &ranges_[(from - hosts_) * switches_ + (to - hosts_)];
    return {&nearer_[range[0]], range[1] - range[0]};
  }
  // The port by which a switch sends on what is for this host.
  uint32_t route(uint32_t at, uint32_t host, uint32_t hash) const {
    const uint32_t leaf = leaf_[host];
    return at == leaf ? host_port(host) : pick(nearer(at, leaf), at, hash);
  }
  // One of several, by the hash; another switch picks independently.
  static uint32_t pick(std::span<const uint32_t> ports, uint32_t at, uint32_t hash) {
    const uint32_t mixed = (hash ^ at * 0x9e3779b1u) * 0x85ebca6bu;
    return ports[(uint64_t{mixed ^ mixed >> 15} * ports.size()) >> 32];
  }

 private:
  Status join();
  void find_ways();

  uint32_t hosts_ = 0, switches_ = 0;
  std::vector<Link> links_;
  std::vector<uint32_t> nic_, leaf_;
  std::vector<bool> is_leaf_;     // by device
  std::vector<uint16_t> hops_;    // by switch and switch
  std::vector<uint32_t> ranges_;  // by switch and switch, into nearer_; one more at the end
  std::vector<uint32_t> nearer_;
};

}  // namespace gatun::net
