// Making and asking UDP sockets: everything about them that is not on the datapath.
#pragma once

#include <cstdint>

#include "host/base/os.h"
#include "protocols/status.h"

namespace gatun {

inline constexpr uint32_t kUdpBufferBytes = 65536;  // no datagram and no GRO packet is larger

struct UdpSocketOptions {
  uint32_t socket_bytes = 0;
  int busy_poll_us = 0;
};

// A non-blocking socket with large buffers, ECT(0) on what it sends, marks of what it receives, and no fragmentation.
Result<Fd> make_udp_socket(int family, const UdpSocketOptions& options);

Status bind_udp(int fd, const Endpoint& local);
Status connect_udp(int fd, const Endpoint& peer);
Endpoint local_address(int fd);

// Switches UDP_GRO on; false where the kernel has none.
bool enable_gro(int fd);
// Does the kernel know UDP GSO? An interface may still refuse it later.
bool has_gso(int fd);

uint32_t receive_buffer_bytes(int fd);  // what the kernel gives, without its allowance for overhead

// Largest payload of a packet by a connected socket's path MTU, or by the family's limit when there is none; a multiple
// of 64, without the packet header.
uint32_t udp_payload_bytes_max(int fd, int family, bool connected);

}  // namespace gatun
