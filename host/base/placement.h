// Where threads run: near the device that they drive, so that packets do not cross between the halves of a machine.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace gatun {

std::vector<int> parse_core_list(const std::string& text);  // "0-3,8"; what is no list is empty

// The cores of the NUMA node of a device, by its folder below /sys: "bus/pci/devices/0000:3b:00.0", "class/net/eth1/device",
// "class/infiniband/mlx5_0/device". Empty where there is none or it says nothing, as for virtual devices.
std::vector<int> cores_near(const std::string& device, const std::string& sys = "/sys");

// The cores that this thread may use, rising.
std::vector<int> allowed_cores();

// Keeps this thread on those of the cores that it may use already. If it may use none of them, because whoever started it
// was kept elsewhere, it may use all. False: the system does not let it run there, and it stays where it was.
bool place_thread(std::span<const int> cores);

}  // namespace gatun
