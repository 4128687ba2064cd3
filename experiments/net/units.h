// Units of the network simulation: picoseconds, in which one byte takes a whole number at every rate that divides 8,000
// Gbit/s (80 at 100 Gbit/s), so that serialisation is exact. The machines of protocols/ count nanoseconds.
#pragma once

#include <cstdint>

#include "protocols/time.h"

namespace gatun::net {

using TimePs = int64_t;
inline constexpr TimePs kPsPerNs = 1000;
inline constexpr TimePs kPsPerUs = 1000 * kPsPerNs;
inline constexpr TimePs kPsPerMs = 1000 * kPsPerUs;

inline constexpr uint32_t kNone = 0xffffffffu;  // no such device, port, packet, flow, rank

constexpr bool is_rate(uint32_t gbps) {
  return gbps > 0 && 8000 % gbps == 0;
}
constexpr uint32_t ps_per_byte(uint32_t gbps) {
  return 8000 / gbps;
}
constexpr TimeNs to_ns(TimePs ps) {
  return ps / kPsPerNs;
}
constexpr double to_ms(TimePs ps) {
  return static_cast<double>(ps) / kPsPerMs;
}
constexpr double to_us(TimePs ps) {
  return static_cast<double>(ps) / kPsPerUs;
}

// What every frame has around its payload: preamble, Ethernet header, checksum and gap; then IPv4 with TCP or UDP.
inline constexpr uint32_t kFrameBytes = 38;
inline constexpr uint32_t kTcpBytes = 40;
inline constexpr uint32_t kUdpBytes = 28;
inline constexpr uint32_t kAckWireBytes = 84;  // the least Ethernet frame

}  // namespace gatun::net
