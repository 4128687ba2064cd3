// The Gloo engine's module, found and loaded. It is a library of its own because PyTorch carries another version of Gloo
// with visible symbols: RTLD_DEEPBIND makes the module see its own first, RTLD_LOCAL keeps them from everybody else.
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdlib>

#include "host/fallback/engine.h"
#include "host/fallback/gloo/module.h"

namespace gatun {
namespace {

constexpr const char* kFile = "libgatun_gloo.so";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kLoad = RTLD_NOW | RTLD_LOCAL;  // sanitizers must see all calls of malloc, and refuse the other
#else
constexpr int kLoad = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
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

// Never unloaded: Gloo's static objects do not survive it.
Result<const GlooModule*> load() {
  const std::string folder = own_folder();
  std::string tried;
  for (const char* relative : {"/", "/../lib/", "/../../lib/", "/" GATUN_BIN_TO_MODULES "/"}) {
    const std::string path = folder + relative + kFile;
    if (::access(path.c_str(), R_OK) != 0) continue;
    void* library = ::dlopen(path.c_str(), kLoad);
    void* entry = library == nullptr ? nullptr : ::dlsym(library, kGlooModuleEntry);
    if (entry == nullptr) {
      const char* why = ::dlerror();
      return Status(Code::kUnsupported,
                    std::string("cannot load the Gloo engine: ") + (why != nullptr ? why : path.c_str()));
    }
    const GlooModule* module = reinterpret_cast<GlooModuleEntry>(entry)();
    if (module->version == kGlooModuleVersion) return module;
    return Status(Code::kUnsupported, path + " belongs to another version of Gatun");
  }
  return Status(Code::kUnsupported,
                std::string("there is no ") + kFile + " in " + folder +
                    ": Gatun was built without Gloo (libgloo-dev), or its files were not installed together");
}

}  // namespace

Result<std::unique_ptr<Engine>> make_gloo_engine(BulkStreams* streams) {
  Result<const GlooModule*> module = load();
  if (!module.ok()) return module.status();
  Status why;
  std::unique_ptr<Engine> engine(module.value()->make(streams, &why));
  if (engine == nullptr) return why;
  return engine;
}

}  // namespace gatun
