// Facts of this host that decide what Gatun can do on it. Each is found by trying, not by reading version numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/os.h"

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

// A TCP connection to one of the addresses of `address`, or why there is none: kTimeout if nothing came back, kSwitchLost
// if a no did.
Result<Fd> connect_within(const std::string& address, int timeout_ms);

}  // namespace gatun
