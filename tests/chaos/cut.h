// Cutting a process off: what arrives at its sockets is silently dropped until they are healed: by a filter that passes
// nothing, set on duplicates of the sockets (pidfd_getfd). It needs no root, no namespace and no firewall, only the right to
// trace the process, which a parent has.
#pragma once

#include <sys/types.h>

#include <string>

#include "protocols/status.h"

namespace gatun::chaos {

// Which of a process's IPv4 sockets: those connected to this address, or all with "". Gatun's UDP sockets are its data path,
// its TCP sockets the control channel (and the mesh, among ranks).
struct Sockets {
  std::string towards;
  bool data = false, control = false;
};

// A listening socket that is cut drops new connections too.
Status cut(pid_t process, const Sockets& which);
Status heal(pid_t process);

// "" if this process may cut its children off, else the reason.
std::string cut_forbidden();

}  // namespace gatun::chaos
