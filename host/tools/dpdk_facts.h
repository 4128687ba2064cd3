// What the setting `device` can name on this host. Read from /sys: DPDK itself is not started, and need not be there.
#pragma once

#include <string>
#include <vector>

namespace gatun {

// A line for each network card on PCI: which driver has it, and how DPDK gets it. sys: "/sys" but in tests.
std::vector<std::string> network_cards(const std::string& sys = "/sys");

// These and a line on virtual devices, which are made when they are named; or one that says what is missing to have any.
std::vector<std::string> dpdk_devices();

}  // namespace gatun
