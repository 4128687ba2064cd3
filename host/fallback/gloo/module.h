// The table of libgatun_gloo.so (host/base/module.h). Both sides are built together; the version catches files of different
// builds.
#pragma once

#include <cstdint>

#include "host/fallback/engine.h"

namespace gatun {

inline constexpr uint32_t kGlooModuleVersion = 1;
inline constexpr const char* kGlooModuleEntry = "gatun_gloo_module";

struct GlooModule {
  uint32_t version;
  // The caller owns the engine. Null: why says why.
  Engine* (*make)(BulkStreams* streams, Status* why);
};

}  // namespace gatun
