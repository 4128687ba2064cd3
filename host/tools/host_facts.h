// Facts of this host that decide what Gatun can do on it. Each is found by trying, not by reading version numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gatun {

struct Feature {
  std::string name;
  bool there = false;
  std::string detail;  // why it matters, or what is missing
};
std::vector<Feature> kernel_features();
Feature nccl_feature();  // whether NCCL could be the ring of memory of a GPU

struct Device {
  std::string name;
  std::vector<std::string> addresses;
  int mtu = 0;
  bool up = false;
};
std::vector<Device> network_devices();

// A line for each RDMA device, or one that says what is missing to have any.
std::vector<std::string> rdma_devices();

std::string kernel_release();
int cpu_count();                  // that this process may run on
uint64_t receive_buffer_limit();  // of a socket, bytes (net.core.rmem_max); 0 if unknown

// "" if something accepts TCP connections at one of the addresses of `address`, else why not.
std::string connect_error(const std::string& address, int timeout_ms);

}  // namespace gatun
