// Random numbers of the simulator: counter-based streams, so that a draw depends only on its own key.
//
// A stream is keyed by (seed, subsystem, entity, index): taking one kind of fault out of a run leaves every other draw as it
// was, which is what makes a failing seed shrinkable. Integers only: the standard distributions and libm differ between
// libraries. The generator is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <bit>
#include <cstdint>

namespace gatun::sim {

constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

enum class Draw : uint64_t {  // subsystems
  kFaults = 1,
  kRun,
  kLine,
  kJob,
  kTree,
  kOps,
  kOpKind,
  kMismatch,
  kSchedule,
  kLink,
  kDelay,
  kLoss,
  kDuplicate,
  kReorder,
  kSpike,
  kCorrupt,
  kTruncate,
  kReplay,
  kForge,
  kMark,
  kHistory,
  kHost,
  kSwitch,
  kValues,
  kToken,
  kFailover,
  kMesh,
  kCrash,
  kNetFlow,
  kNetJob,
};

class Stream {
 public:
  constexpr Stream(uint64_t seed, Draw subsystem, uint64_t entity = 0, uint64_t index = 0)
      : key_(mix(mix(mix(seed) ^ static_cast<uint64_t>(subsystem)) ^ mix(entity) ^ (index << 1))) {}

  constexpr uint64_t next() { return mix(key_ += 0x9e3779b97f4a7c15u); }
  // 0 <= result < bound; the bias of the multiplication is far below what a run can see.
  constexpr uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  constexpr uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  constexpr bool one_in(uint64_t n) { return below(n) == 0; }
  constexpr bool chance_ppm(uint64_t ppm) { return below(1000000) < ppm; }
  // Each octave between low and high equally likely, even within an octave.
  constexpr uint64_t log_between(uint64_t low, uint64_t high) {
    if (high <= low) return low;
    const int octaves = static_cast<int>(std::bit_width(high / low));
    for (;;) {
      const uint64_t base = low << below(static_cast<uint64_t>(octaves));
      const uint64_t value = base + below(base == 0 ? 1 : base);
      if (value <= high) return value;
    }
  }

 private:
  uint64_t key_;
};

}  // namespace gatun::sim
