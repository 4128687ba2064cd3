// Cutting a process off: what arrives at its sockets is silently dropped until they are healed: by a filter that passes
// nothing, set on duplicates of the sockets (pidfd_getfd). It needs no root, no namespace and no firewall, only the right to
// trace the process, which a parent has.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "protocols/status.h"

namespace gatun {

// Which of a process's IPv4 sockets: those connected to this address, or all with "". Gatun's UDP sockets are its data path,
// its TCP sockets the control channel (and the mesh, among ranks).
struct Sockets {
  std::string towards;
  bool data = false, control = false;
};

// A listening socket that is cut drops new connections too.
Status cut(pid_t process, const Sockets& which);
Status heal(pid_t process);

// A process's TCP connections, by the ports at both ends: its own and the other's.
using Ports = std::set<std::pair<uint16_t, uint16_t>>;
Result<Ports> connections(pid_t process);
// What the other process, which has these connections, sends this one by TCP is dropped; or both ends see them end.
Status cut_between(pid_t process, const Ports& of_other);
Status break_between(pid_t process, const Ports& of_other);

// "" if this process may cut its children off, else the reason.
std::string cut_forbidden();

}  // namespace gatun
