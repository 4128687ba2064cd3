// Who is where on the local network: ARP (RFC 826) for IPv4, neighbour discovery (RFC 4861) for IPv6.
//
// A question goes to all and says who asks, so that its hearer need not ask back; an answer goes to the asker. Pure.
#pragma once

#include "host/transport/dpdk_frame.h"

namespace gatun {

inline constexpr uint32_t kNeighbourBytesMax = kEthernetBytes + kIp6Bytes + 32;

// Each writes one frame to out, which has room for kNeighbourBytesMax, and returns its size.
uint32_t write_question(const Mac& own_mac, const Ip& own_ip, const Ip& wanted, std::byte* out);
uint32_t write_answer(const Mac& own_mac, const Ip& own_ip, const Mac& asker_mac, const Ip& asker_ip, std::byte* out);

// The group address to which questions for this IPv6 address go.
Mac question_group(const Ip& wanted);

// For parse_frame(): what is behind the Ethernet header, and the body of an ICMPv6 packet whose addresses stand in *frame.
// Both leave kOther where there is neither a question nor an answer.
void parse_arp(std::span<const std::byte> bytes, Frame* frame);
void parse_discovery(std::span<const std::byte> body, Frame* frame);

}  // namespace gatun
