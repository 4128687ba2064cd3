// The Gloo engine's module. It is a library of its own because PyTorch carries another version of Gloo with visible
// symbols: the module sees its own first, and nobody else sees them. Gloo's static objects would not survive unloading.
#include "host/base/module.h"
#include "host/fallback/engine.h"
#include "host/fallback/gloo/module.h"

namespace gatun {

Result<std::unique_ptr<Engine>> make_gloo_engine(BulkStreams* streams) {
  Result<const void*> loaded = load_module({.file = "libgatun_gloo.so",
                                            .entry = kGlooModuleEntry,
                                            .what = "the Gloo engine",
                                            .needs = "Gloo (libgloo-dev)",
                                            .own_symbols_first = true});
  if (!loaded.ok()) return loaded.status();
  const GlooModule* module = static_cast<const GlooModule*>(loaded.value());
  if (module->version != kGlooModuleVersion) {
    return Status(Code::kUnsupported, "libgatun_gloo.so belongs to another version of Gatun");
  }
  Status why;
  std::unique_ptr<Engine> engine(module->make(streams, &why));
  if (engine == nullptr) return why;
  return engine;
}

}  // namespace gatun
