"""Which folder may include what. The table is the architecture: an arrow that is not here does not exist."""

# Longest prefix wins. Of our own files a folder may include those that start with one of its prefixes.
ARROWS = {
    "include/gatun/": ("gatun/",),
    "protocols/": ("protocols/",),
    "switch_model/": ("switch_model/", "protocols/"),
    "switch_model/daemon/": ("switch_model/", "protocols/", "host/transport/", "host/base/"),
    "host/base/": ("host/base/", "protocols/"),
    "host/transport/": ("host/transport/", "host/base/", "protocols/"),
    "host/lib/": ("host/lib/", "host/fallback/", "host/transport/", "host/base/", "protocols/", "gatun/"),
    "host/fallback/": ("host/fallback/", "host/base/", "protocols/"),
    "host/cuda/": ("host/cuda/", "host/base/", "protocols/"),
    "host/tools/": ("host/tools/", "host/fallback/nccl/library.h", "host/transport/", "host/base/", "protocols/", "gatun/"),
    "host/plugins/": ("host/plugins/", "gatun/"),
    "experiments/": ("experiments/", "tests/sim/event_queue.h", "tests/sim/rng.h", "protocols/", "switch_model/"),
}
DENIED = {"switch_model/": ("switch_model/daemon/",)}  # within what ARROWS allows
OURS = ("include/", "gatun/", "protocols/", "switch_model/", "host/", "tests/", "experiments/")

# The pure folders see the language, nothing that reads a clock, starts a thread or does I/O.
PURE = ("protocols/", "switch_model/")
NOT_PURE = ("switch_model/daemon/",)
PURE_HEADERS = set(
    """
    algorithm array atomic bit bitset cassert cctype cerrno cfloat charconv cinttypes climits cmath compare concepts cstddef
    cstdint cstdio cstdlib cstring deque functional initializer_list iterator limits list map memory new numeric optional
    queue set span stdexcept string string_view tuple type_traits unordered_map unordered_set utility variant vector
    stddef.h stdint.h immintrin.h nmmintrin.h arm_acle.h
    """.split()
)
PURE_PREFIXES = {"protocols/": (), "switch_model/": ("hwy/",)}


def layer_of(path):
    prefixes = [p for p in ARROWS if path.startswith(p)]
    return max(prefixes, key=len) if prefixes else None


def check(path, include, quote):
    """None when `path` may include this, else the complaint and the way out."""
    layer = layer_of(path)
    if layer is None:
        return None
    ours = include.startswith(OURS)
    if ours:
        if not include.startswith(ARROWS[layer]) or include.startswith(DENIED.get(layer, ("\0",))):
            allowed = ", ".join(ARROWS[layer])
            return f'{layer} may not include "{include}"; it may include {allowed} (move the code, or pass values in)'
        return None
    if quote == '"':
        return f'"{include}" is not a path from the repository root; write it as "folder/file.h"'
    if path.startswith(PURE) and not path.startswith(NOT_PURE):
        prefix = next(p for p in PURE if path.startswith(p))
        if include not in PURE_HEADERS and not include.startswith(PURE_PREFIXES[prefix] or "\0"):
            return f"{prefix} is pure: <{include}> is not among its standard headers (no I/O, no clock, no threads there)"
    return None
