#include "tests/sim/values.h"

#include <bit>
#include <cstdio>
#include <cstring>

#include "switch_model/kernels.h"
#include "tests/sim/rng.h"

namespace gatun::sim {
namespace {

constexpr int kTagBits = 3;  // per rank: counts up to seven contributions

template <typename T>
void put(std::byte* out, uint64_t index, T value) {
  std::memcpy(out + index * sizeof(T), &value, sizeof(T));
}

// The largest magnitude of which 16 summands stay exact in the type's own precision or in f32, whichever sums them.
int magnitude(Type type) {
  switch (type) {
    case Type::kE4M3: return 8;
    case Type::kE5M2:
    case Type::kBF16: return 100;
    case Type::kF16: return 2000;
    default: return 100000;
  }
}

double rough(uint64_t random) {
  const double mantissa = 1 + static_cast<double>(random >> 40) / (1 << 24);
  const int exponent = static_cast<int>(random & 15) - 8;
  const double scale = exponent < 0 ? 1.0 / (1 << -exponent) : 1 << exponent;
  return (random & 16 ? -1 : 1) * mantissa * scale;
}

double number(const OpPlan& op, uint32_t rank, uint64_t index, uint64_t random) {
  switch (op.values) {
    case Values::kTags:
      if (index % 2 == 0) return static_cast<double>(uint64_t{1} << (kTagBits * rank));
      break;
    case Values::kRough: return rough(random);
    case Values::kIntegers: break;
  }
  if (op.op == Op::kProd) {
    constexpr double kFactors[] = {1, -1, 2, 0.5};
    return kFactors[random & 3];
  }
  const int most = magnitude(op.type);
  return static_cast<double>(static_cast<int64_t>(random % (2 * static_cast<uint64_t>(most) + 1)) - most);
}

bool is_integer(Type type) {
  return static_cast<unsigned>(type) <= static_cast<unsigned>(Type::kU64);
}

void fill_integers(const OpPlan& op, uint64_t elems, uint32_t rank, std::byte* out) {
  const uint64_t key = mix(op.key ^ rank);
  for (uint64_t i = 0; i < elems; ++i) {
    uint64_t value = mix(key + i);
    if (op.values == Values::kTags && i % 2 == 0) value = uint64_t{1} << (kTagBits * rank);
    switch (elem_bytes(op.type)) {
      case 1: put(out, i, static_cast<uint8_t>(value)); break;
      case 4: put(out, i, static_cast<uint32_t>(value)); break;
      default: put(out, i, value); break;
    }
  }
}

void fill_floats(const OpPlan& op, uint64_t elems, uint32_t rank, std::byte* out) {
  const uint64_t key = mix(op.key ^ rank);
  Bytes wide;
  const bool narrow = partial_type(op.type) != op.type;
  if (narrow) wide.resize(elems * sizeof(float));
  std::byte* to = narrow ? wide.data() : out;
  for (uint64_t i = 0; i < elems; ++i) {
    const double value = number(op, rank, i, mix(key + i));
    if (op.type == Type::kF64) {
      put(to, i, value);
    } else {
      put(to, i, static_cast<float>(value));
    }
  }
  if (!narrow || elems == 0) return;
  const void* in[] = {wide.data()};
  reduce_scalar({.type = op.type, .op = Op::kSum, .inputs = 1, .in = in, .partial = 1, .out = out, .elems = elems});
}

uint64_t whole(double value) {
  return value >= 0 && value < 9e15 ? static_cast<uint64_t>(value) : 0;
}

struct Inputs {
  const JobPlan& job;
  const OpPlan& op;
  const Shape& shape;
  std::span<const std::byte* const> of_rank;  // of one chunk
};

void reduce_flat(const Inputs& in, uint64_t chunk, std::byte* out) {
  const void* parts[kRanksMax];
  int count = 0;
  for (uint32_t rank = 0; rank < in.job.ranks; ++rank) {
    if (in.shape.gives(rank, chunk)) parts[count++] = in.of_rank[rank];
  }
  reduce_scalar({.type = in.op.type,
                 .op = in.op.op,
                 .inputs = count,
                 .in = parts,
                 .out = out,
                 .divisor = static_cast<uint32_t>(count),
                 .elems = in.shape.elems(chunk)});
}

// In the order of the tree: each switch adds its children in their order, partial sums in the partial type.
void reduce_by_tree(const Inputs& in, const TreePlan& tree, uint32_t index, uint64_t chunk, std::byte* out) {
  const SwitchPlan& node = tree.switches[index];
  const bool root = node.parent < 0;
  std::vector<Bytes> below(node.children.size());
  std::vector<const void*> parts(node.children.size());
  uint64_t partial = 0;
  for (size_t k = 0; k < node.children.size(); ++k) {
    const SwitchPlan::Child& child = node.children[k];
    if (child.is_switch) {
      below[k].resize(kPayloadMax);
      reduce_by_tree(in, tree, child.index, chunk, below[k].data());
      parts[k] = below[k].data();
      partial |= uint64_t{1} << k;
    } else {
      parts[k] = in.of_rank[child.index];
    }
  }
  reduce_scalar({.type = in.op.type,
                 .op = in.op.op,
                 .inputs = static_cast<int>(parts.size()),
                 .in = parts.data(),
                 .partial = partial,
                 .out = out,
                 .out_partial = !root,
                 .divisor = in.job.ranks,
                 .elems = in.shape.elems(chunk)});
}

}  // namespace

void fill_input(const OpPlan& op, const Shape& shape, uint32_t rank, std::byte* out) {
  if (is_integer(op.type)) {
    fill_integers(op, shape.total_elems(), rank, out);
  } else {
    fill_floats(op, shape.total_elems(), rank, out);
  }
}

Bytes expected_result(const JobPlan& job, const CallPlan& call, uint32_t op_number) {
  const OpPlan& op = call.op;
  const Shape shape(job, op);
  Bytes result(shape.total_bytes());
  if (op.collective == Collective::kBarrier) return result;
  std::vector<Bytes> inputs(job.ranks, Bytes(shape.total_bytes()));
  for (uint32_t rank = 0; rank < job.ranks; ++rank) fill_input(op, shape, rank, inputs[rank].data());
  for (uint64_t chunk = 0; chunk < shape.chunks(); ++chunk) {
    const std::byte* of_rank[kRanksMax];
    for (uint32_t rank = 0; rank < job.ranks; ++rank) of_rank[rank] = inputs[rank].data() + shape.offset_bytes(chunk);
    reduce_chunk(job, op, op_number, chunk, {of_rank, job.ranks}, result.data() + shape.offset_bytes(chunk));
  }
  return result;
}

void reduce_chunk(const JobPlan& job, const OpPlan& op, uint32_t op_number, uint64_t chunk,
                  std::span<const std::byte* const> of_rank, std::byte* out) {
  const Shape shape(job, op);
  const Inputs inputs{.job = job, .op = op, .shape = shape, .of_rank = of_rank};
  if (op.values != Values::kRough) return reduce_flat(inputs, chunk, out);
  const TreePlan& tree = job.tree_plans[(op_number + chunk) % job.trees];
  reduce_by_tree(inputs, tree, static_cast<uint32_t>(tree.switches.size() - 1), chunk, out);
}

std::string difference(const OpPlan& op, const Shape& shape, uint64_t chunk, const std::byte* got, const std::byte* want) {
  const size_t width = elem_bytes(op.type);
  uint64_t first = 0;
  while (first + 1 < shape.elems(chunk) && std::memcmp(got + first * width, want + first * width, width) == 0) ++first;
  uint64_t g = 0, w = 0;
  std::memcpy(&g, got + first * width, width);
  std::memcpy(&w, want + first * width, width);
  char text[256];
  std::snprintf(text, sizeof text, "element %llu is %#llx, not %#llx", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(g), static_cast<unsigned long long>(w));
  std::string line = text;
  if (op.values != Values::kTags || first % 2 != 0) return line;
  if (op.type == Type::kF64) g = whole(std::bit_cast<double>(g));
  if (op.type == Type::kF32) g = whole(std::bit_cast<float>(static_cast<uint32_t>(g)));
  line += "; contributions of rank 0, 1, ...:";
  for (uint32_t rank = 0; rank < kRanksMax; ++rank) {
    std::snprintf(text, sizeof text, " %u", static_cast<unsigned>(g >> (kTagBits * rank) & 7));
    line += text;
  }
  return line;
}

}  // namespace gatun::sim
