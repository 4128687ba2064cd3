#include "host/base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace gatun {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOwnSymbolsFirst = 0;  // sanitizers must see all calls of malloc, and refuse RTLD_DEEPBIND
#else
constexpr int kOwnSymbolsFirst = RTLD_DEEPBIND;
#endif

// The folder of the library or program that this code is in, "" if that cannot be found out.
std::string own_folder() {
  static const char kHere = 0;
  Dl_info info{};
  char path[PATH_MAX] = "";
  const bool known = ::dladdr(&kHere, &info) != 0 && info.dli_fname != nullptr;
  // A program is known by the name it was called by, which may not be a path.
  if (!known || ::realpath(info.dli_fname, path) == nullptr) {
    if (::realpath("/proc/self/exe", path) == nullptr) return "";
  }
  const std::string text = path;
  return text.substr(0, text.rfind('/'));
}

}  // namespace

Result<const void*> load_module(const ModuleFile& module) {
  const std::string folder = own_folder();
  const int flags = RTLD_NOW | RTLD_LOCAL | (module.own_symbols_first ? kOwnSymbolsFirst : 0);
  for (const char* relative : {"/", "/../lib/", "/../../lib/", "/" GATUN_BIN_TO_MODULES "/"}) {
    const std::string path = folder + relative + module.file;
    if (::access(path.c_str(), R_OK) != 0) continue;
    void* library = ::dlopen(path.c_str(), flags);
    void* entry = library == nullptr ? nullptr : ::dlsym(library, module.entry);
    if (entry != nullptr) return reinterpret_cast<const void* (*)()>(entry)();
    const char* why = ::dlerror();
    return Status(Code::kUnsupported,
                  std::string("cannot load ") + module.what + ": " + (why != nullptr ? why : path.c_str()));
  }
  return Status(Code::kUnsupported, std::string("there is no ") + module.file + " in " + folder +
                                        ": Gatun was built without " + module.needs +
                                        ", or its files were not installed together");
}

}  // namespace gatun
