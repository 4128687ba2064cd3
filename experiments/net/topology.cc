#include "experiments/net/topology.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace gatun::net {
namespace {

constexpr uint16_t kFar = 0xffff;

Status invalid(const std::string& sentence) {
  return {Code::kInvalidArgument, sentence};
}

// How many switches a leaf is linked to.
Result<uint32_t> uplinks(const Shape& s) {
  if (s.hosts == 0 || s.hosts_per_leaf == 0) return invalid("there must be hosts, and hosts on a leaf");
  if (s.hosts % s.hosts_per_leaf != 0) {
    return invalid(std::to_string(s.hosts) + " hosts do not fill leaves of " + std::to_string(s.hosts_per_leaf) +
                   ": choose --hosts as a multiple of --hosts-per-leaf");
  }
  if (s.spines > 0) return s.spines;
  const uint32_t down = s.hosts_per_leaf * s.gbps, up = s.fabric_gbps * s.over_subscription;
  if (up == 0 || down % up != 0) {
    return invalid("a leaf with " + std::to_string(s.hosts_per_leaf) + " hosts of " + std::to_string(s.gbps) +
                   " Gbit/s has no whole number of links of " + std::to_string(s.fabric_gbps) +
                   " Gbit/s upwards at over-subscription " + std::to_string(s.over_subscription) +
                   ": change one of them, or give --spines");
  }
  return down / up;
}

void add_hosts(const Shape& s, std::vector<Link>* links) {
  for (uint32_t h = 0; h < s.hosts; ++h) links->push_back({h, s.hosts + h / s.hosts_per_leaf, s.gbps, s.delay});
}

}  // namespace

Result<Topology> Topology::make(uint32_t hosts, uint32_t switches, std::vector<Link> links) {
  Topology topology;
  topology.hosts_ = hosts;
  topology.switches_ = switches;
  topology.links_ = std::move(links);
  if (Status status = topology.join(); !status.ok()) return status;
  topology.find_ways();
  for (const uint16_t hops : topology.hops_) {
    if (hops == kFar) return invalid("some switches of the topology are not connected with the others: add links");
  }
  return topology;
}

Result<Topology> Topology::leaf_spine(const Shape& s) {
  Result<uint32_t> spines = uplinks(s);
  if (!spines.ok()) return spines.status();
  const uint32_t leaves = s.hosts / s.hosts_per_leaf;
  std::vector<Link> links;
  add_hosts(s, &links);
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    for (uint32_t i = 0; i < spines.value(); ++i) {
      links.push_back({s.hosts + leaf, s.hosts + leaves + i, s.fabric_gbps, s.delay});
    }
  }
  return make(s.hosts, leaves + spines.value(), std::move(links));
}

Result<Topology> Topology::clos3(const Shape& s) {
  Result<uint32_t> uplink_count = uplinks(s);
  if (!uplink_count.ok()) return uplink_count.status();
  const uint32_t leaves = s.hosts / s.hosts_per_leaf, groups = uplink_count.value();
  if (s.leaves_per_pod == 0 || leaves % s.leaves_per_pod != 0) {
    return invalid(std::to_string(leaves) + " leaves do not fill pods of " + std::to_string(s.leaves_per_pod) +
                   ": choose --hosts as a multiple of --hosts-per-leaf times --leaves-per-pod");
  }
  const uint32_t pods = leaves / s.leaves_per_pod, cores_per_group = s.leaves_per_pod;
  const uint32_t first_aggregation = s.hosts + leaves, first_core = first_aggregation + pods * groups;
  std::vector<Link> links;
  add_hosts(s, &links);
  for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
    for (uint32_t g = 0; g < groups; ++g) {
      links.push_back({s.hosts + leaf, first_aggregation + leaf / s.leaves_per_pod * groups + g, s.fabric_gbps, s.delay});
    }
  }
  for (uint32_t pod = 0; pod < pods; ++pod) {
    for (uint32_t g = 0; g < groups; ++g) {
      for (uint32_t c = 0; c < cores_per_group; ++c) {
        links.push_back(
            {first_aggregation + pod * groups + g, first_core + g * cores_per_group + c, s.fabric_gbps, s.delay});
      }
    }
  }
  return make(s.hosts, leaves + pods * groups + groups * cores_per_group, std::move(links));
}

Result<Topology> Topology::read(const std::string& path, const Shape& defaults) {
  std::ifstream file(path);
  if (!file) return invalid("cannot read the topology " + path + ": name a file, leaf-spine or clos3");
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    std::map<std::string, uint32_t> devices;
    for (const auto& name : json.at("hosts")) {
      if (!devices.emplace(name.get<std::string>(), devices.size()).second) {
        return invalid(path + ": host " + name.get<std::string>() + " is there twice");
      }
    }
    const auto hosts = static_cast<uint32_t>(devices.size());
    std::vector<Link> links;
    for (const auto& link : json.at("links")) {
      const auto ends = link.at("ends").get<std::vector<std::string>>();
      if (ends.size() != 2) return invalid(path + ": a link has two ends, not " + std::to_string(ends.size()));
      const uint32_t a = devices.emplace(ends[0], devices.size()).first->second;
      const uint32_t b = devices.emplace(ends[1], devices.size()).first->second;
      const double delay_us = link.value("delay_us", to_us(defaults.delay));
      links.push_back({a, b, link.value("gbps", defaults.gbps), static_cast<TimePs>(delay_us * kPsPerUs)});
    }
    return make(hosts, static_cast<uint32_t>(devices.size()) - hosts, std::move(links));
  } catch (const nlohmann::json::exception& error) {
    return invalid(path + " is no topology: " + error.what());
  }
}

// Which port and leaf each host has.
Status Topology::join() {
  if (hosts_ == 0 || switches_ == 0) return invalid("a topology has hosts and switches");
  nic_.assign(hosts_, kNone);
  leaf_.assign(hosts_, kNone);
  is_leaf_.assign(devices(), false);
  for (uint32_t l = 0; l < links_.size(); ++l) {
    const Link& link = links_[l];
    if (!is_rate(link.gbps)) {
      return invalid(
          "a rate of " + std::to_string(link.gbps) +
          " Gbit/s makes no whole picoseconds a byte: choose one that divides 8000, such as 10, 25, 40, 100, 400");
    }
    if (link.delay < 0 || link.a == link.b) return invalid("a link joins two devices and has a delay of 0 or more");
    for (const uint32_t port : {2 * l, 2 * l + 1}) {
      if (!is_host(from(port))) continue;
      if (is_host(to(port)) || nic_[from(port)] != kNone) return invalid("a host has one link, and it leads to a switch");
      nic_[from(port)] = port;
      leaf_[from(port)] = to(port);
      is_leaf_[to(port)] = true;
    }
  }
  for (const uint32_t nic : nic_) {
    if (nic == kNone) return invalid("a host has one link, and it leads to a switch");
  }
  return {};
}

// A search in breadth from each switch, then the ports that come one hop nearer.
void Topology::find_ways() {
  std::vector<std::vector<uint32_t>> ports(switches_);  // to other switches
  for (uint32_t port = 0; port < 2 * links_.size(); ++port) {
    if (is_fabric(port)) ports[from(port) - hosts_].push_back(port);
  }
  hops_.assign(size_t{switches_} * switches_, kFar);
  for (uint32_t end = 0; end < switches_; ++end) {
    std::vector<uint32_t> line = {end};
    hops_[end * switches_ + end] = 0;
    for (size_t i = 0; i < line.size(); ++i) {
      for (const uint32_t port : ports[line[i]]) {
        const uint32_t next = to(port) - hosts_;
        if (hops_[next * switches_ + end] != kFar) continue;
        hops_[next * switches_ + end] = static_cast<uint16_t>(hops_[line[i] * switches_ + end] + 1);
        line.push_back(next);
      }
    }
  }
  for (uint32_t s = 0; s < switches_; ++s) {
    for (uint32_t end = 0; end < switches_; ++end) {
      ranges_.push_back(static_cast<uint32_t>(nearer_.size()));
      for (const uint32_t port : ports[s]) {
        if (hops_[(to(port) - hosts_) * switches_ + end] + 1 == hops_[s * switches_ + end]) nearer_.push_back(port);
      }
    }
  }
  ranges_.push_back(static_cast<uint32_t>(nearer_.size()));
}

}  // namespace gatun::net
