// Modules: parts of Gatun that live in shared objects of their own, loaded when they are first wanted, so that neither
// libgatun.so nor gatund needs the libraries behind them (Gloo, DPDK).
//
// A module exports one C function without arguments, which returns a pointer to its table. What goes through the table is
// purely virtual or inline, since neither side exports symbols to the other. Modules are never unloaded.
#pragma once

#include "protocols/status.h"

namespace gatun {

struct ModuleFile {
  const char* file;   // "libgatun_gloo.so", in the folder of this library or program or the library folder beside it
  const char* entry;  // the function
  const char* what;   // "the Gloo engine", for sentences
  const char* needs;  // "Gloo (libgloo-dev)": without it Gatun is built without the module
  bool own_symbols_first = false;  // the process may hold another version of what the module links to
};

// The table that the module's function returned. kUnsupported, with the reason, if there is none.
Result<const void*> load_module(const ModuleFile& module);

}  // namespace gatun
