// Shape: how one operation's elements lie in chunks, and which rank gives and which rank takes each chunk.
//
// All-gather and reduce-scatter have a part per rank, each padded to whole chunks; the others have one part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/sim/plan.h"

namespace gatun::sim {

struct Shape {
  Collective collective;
  Type type;
  uint32_t root = 0;
  uint32_t elems_per_chunk = 1;
  uint64_t parts = 1, part_elems = 0, part_chunks = 0;

  Shape(const JobPlan& job, const OpPlan& op)
      : collective(op.collective), type(op.type), root(op.root), elems_per_chunk(job.elems_per_chunk(op.type)) {
    const bool split = collective == Collective::kAllGather || collective == Collective::kReduceScatter;
    parts = split ? job.ranks : 1;
    part_elems = op.elems;
    part_chunks = (op.elems + elems_per_chunk - 1) / elems_per_chunk;
    if (collective == Collective::kBarrier) {
      part_elems = 0;
      part_chunks = 1;
    }
  }

  uint64_t chunks() const { return parts * part_chunks; }
  uint64_t total_elems() const { return parts * part_elems; }
  uint64_t total_bytes() const { return total_elems() * elem_bytes(type); }
  uint32_t elems(uint64_t chunk) const {
    const uint64_t before = chunk % part_chunks * elems_per_chunk;
    return static_cast<uint32_t>(std::min<uint64_t>(elems_per_chunk, part_elems - std::min(before, part_elems)));
  }
  uint32_t bytes(uint64_t chunk) const { return elems(chunk) * static_cast<uint32_t>(elem_bytes(type)); }
  uint64_t offset_bytes(uint64_t chunk) const {
    return (chunk / part_chunks * part_elems + chunk % part_chunks * elems_per_chunk) * elem_bytes(type);
  }

  bool gives(uint32_t rank, uint64_t chunk) const {
    switch (collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kReduceScatter: return true;
      case Collective::kBroadcast: return rank == root;
      case Collective::kAllGather: return chunk / part_chunks == rank;
      case Collective::kBarrier: return false;
    }
    return false;
  }
  bool takes(uint32_t rank, uint64_t chunk) const {
    switch (collective) {
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kAllGather: return true;
      case Collective::kReduce: return rank == root;
      case Collective::kReduceScatter: return chunk / part_chunks == rank;
      case Collective::kBarrier: return false;
    }
    return false;
  }
};

}  // namespace gatun::sim
