// What the setting `device` can name on this host. Read from /sys: DPDK itself is not started, and need not be there.
#pragma once

#include <string>
#include <vector>

namespace gatun {

// The PCI addresses of the network cards, sorted. sys: "/sys" but in tests, here and below.
std::vector<std::string> card_addresses(const std::string& sys = "/sys");
// "ice"; "" for none.
std::string card_driver(const std::string& pci, const std::string& sys = "/sys");
bool is_for_dpdk(const std::string& driver);       // the card is DPDK's
bool is_beside_kernel(const std::string& driver);  // the kernel keeps the card, and DPDK can use it beside that

// A line for each network card on PCI: which driver has it, and how DPDK gets it.
std::vector<std::string> network_cards(const std::string& sys = "/sys");

// These and a line on virtual devices, which are made when they are named; or one that says what is missing to have any.
std::vector<std::string> dpdk_devices();

}  // namespace gatun
