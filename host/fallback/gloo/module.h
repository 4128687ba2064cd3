// The door of libgatun_gloo.so: one C symbol. What goes through it is purely virtual or inline, since the host library
// exports no symbols. Both sides are built together; the version catches files of different builds.
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
using GlooModuleEntry = const GlooModule* (*)();

}  // namespace gatun
