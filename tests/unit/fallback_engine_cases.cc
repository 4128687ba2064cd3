#include "fallback_engine_cases.h"

namespace gatun {
namespace {

constexpr size_t kGuard = 64;
constexpr uint8_t kUntouched = 0xa5;

// Elements of a rank's send and receive buffers.
size_t send_elems(const Contract& contract, uint32_t rank, uint32_t ranks) {
  switch (contract.collective) {
    case Collective::kReduceScatter: return contract.count * ranks;
    case Collective::kBroadcast: return rank == contract.root ? contract.count : 0;
    case Collective::kBarrier: return 0;
    default: return contract.count;
  }
}

size_t receive_elems(const Contract& contract, uint32_t rank, uint32_t ranks) {
  switch (contract.collective) {
    case Collective::kAllGather: return contract.count * ranks;
    case Collective::kReduce: return rank == contract.root ? contract.count : 0;
    case Collective::kBarrier: return 0;
    default: return contract.count;
  }
}

Bytes expected(const Contract& contract, uint32_t rank, const std::vector<uint32_t>& groups,
               const std::vector<Bytes>& inputs) {
  const auto ranks = static_cast<uint32_t>(inputs.size());
  const size_t bytes = contract.count * elem_bytes(contract.type);
  switch (contract.collective) {
    case Collective::kBroadcast: return inputs[contract.root];
    case Collective::kBarrier: return {};
    case Collective::kAllGather: {
      Bytes all;
      for (const Bytes& input : inputs) all.insert(all.end(), input.begin(), input.end());
      return all;
    }
    case Collective::kReduceScatter: {
      const Bytes all = reduced(contract.type, contract.op, groups, inputs, contract.count * ranks);
      return Bytes(all.begin() + static_cast<ptrdiff_t>(rank * bytes),
                   all.begin() + static_cast<ptrdiff_t>((rank + 1) * bytes));
    }
    case Collective::kReduce:
      if (rank != contract.root) return {};
      [[fallthrough]];
    case Collective::kAllReduce: break;
  }
  return reduced(contract.type, contract.op, groups, inputs, contract.count);
}

struct SmallNumbers {
  explicit SmallNumbers(uint32_t seed) : random(seed) {}
  void operator()(Type type, uint8_t* to, size_t elems) {
    const bool sign = type != Type::kU8 && type != Type::kU32 && type != Type::kU64;
    for (size_t i = 0; i < elems; ++i) {
      const int value = static_cast<int>(random() % (sign ? 5 : 3)) - (sign ? 2 : 0);
      uint64_t bits = static_cast<uint64_t>(value);
      const auto number = static_cast<float>(value);
      const auto wide = static_cast<double>(value);
      switch (type) {
        case Type::kF32: std::memcpy(&bits, &number, 4); break;
        case Type::kF64: std::memcpy(&bits, &wide, 8); break;
        case Type::kF16: bits = F16::narrow(number); break;
        case Type::kBF16: bits = BF16::narrow(number); break;
        case Type::kE4M3: bits = E4M3::narrow(number); break;
        case Type::kE5M2: bits = E5M2::narrow(number); break;
        default: break;
      }
      std::memcpy(to + i * elem_bytes(type), &bits, elem_bytes(type));
    }
  }
  std::mt19937 random;
};

}  // namespace

Bytes reduced(Type type, Op op, const std::vector<uint32_t>& groups, const std::vector<Bytes>& inputs, size_t elems) {
  std::vector<const void*> in;
  std::vector<Bytes> partials;
  Bytes out(elems * elem_bytes(type));
  const auto ranks = static_cast<uint32_t>(inputs.size());
  auto level = [&](void* to, uint64_t partial, bool out_partial) {
    ReduceArgs args{type, op, static_cast<int>(in.size()), in.data(), partial, to, out_partial, ranks, elems};
    reduce_scalar(args);
  };
  if (groups.size() <= 1) {
    for (const Bytes& input : inputs) in.push_back(input.data());
    level(out.data(), 0, false);
    return out;
  }
  size_t rank = 0;
  for (uint32_t members : groups) {
    in.clear();
    for (uint32_t i = 0; i < members; ++i) in.push_back(inputs[rank++].data());
    partials.emplace_back(elems * elem_bytes(partial_type(type)));
    level(partials.back().data(), 0, true);
  }
  in.clear();
  for (const Bytes& partial : partials) in.push_back(partial.data());
  level(out.data(), ~uint64_t{0} >> (64 - in.size()), false);
  return out;
}

EngineGroup::EngineGroup(uint32_t ranks, const Make& make) : meshes(ranks), engines(ranks) {
  for (uint32_t r = 0; r < ranks; ++r) {
    auto engine = make(&meshes[r]);
    INFO(engine.status().message());
    REQUIRE(engine.ok());
    engines[r] = std::move(engine.value());
  }
}

void EngineGroup::check(const EngineCase& test, const std::vector<uint32_t>& groups, const Fill& fill) {
  const Contract& contract = test.contract;
  const size_t elem = elem_bytes(contract.type);
  const size_t begin = kGuard + test.shift;
  std::vector<Bytes> inputs(ranks()), sends(ranks()), receives(ranks());
  for (uint32_t r = 0; r < ranks(); ++r) {
    const size_t sent = send_elems(contract, r, ranks()) * elem, received = receive_elems(contract, r, ranks()) * elem;
    inputs[r].resize(sent);
    fill(contract.type, inputs[r].data(), sent / elem);
    sends[r].assign(2 * begin + sent, kUntouched);
    receives[r].assign(2 * begin + std::max(sent, received), kUntouched);
    Bytes& holds = test.in_place ? receives[r] : sends[r];
    std::copy(inputs[r].begin(), inputs[r].end(), holds.begin() + static_cast<ptrdiff_t>(begin));
  }
  const auto statuses = on_ranks(ranks(), [&](uint32_t r) {
    const Bytes& holds = test.in_place ? receives[r] : sends[r];
    return engines[r]->run(contract, holds.data() + begin, receives[r].data() + begin, soon());
  });
  INFO(engines[0]->name() << ": " << describe(contract) << ", ranks " << ranks() << ", groups " << groups.size()
                          << ", in place " << test.in_place << ", shift " << test.shift);
  require_ok(statuses);
  for (uint32_t r = 0; r < ranks(); ++r) {
    const Bytes want = expected(contract, r, groups, inputs);
    const Bytes got(receives[r].begin() + static_cast<ptrdiff_t>(begin),
                    receives[r].begin() + static_cast<ptrdiff_t>(begin + want.size()));
    INFO("rank " << r);
    REQUIRE((got == want));
    auto untouched = [](auto from, auto to) {
      return std::all_of(from, to, [](uint8_t byte) { return byte == kUntouched; });
    };
    REQUIRE(untouched(receives[r].begin(), receives[r].begin() + static_cast<ptrdiff_t>(begin)));
    const size_t used = std::max(want.size(), test.in_place ? inputs[r].size() : 0);
    REQUIRE(untouched(receives[r].begin() + static_cast<ptrdiff_t>(begin + used), receives[r].end()));
    if (test.in_place) continue;
    REQUIRE(std::equal(inputs[r].begin(), inputs[r].end(), sends[r].begin() + static_cast<ptrdiff_t>(begin)));
  }
}

EngineGroup::Fill small_numbers(uint32_t seed) {
  return [numbers = std::make_shared<SmallNumbers>(seed)](Type type, uint8_t* to, size_t elems) {
    (*numbers)(type, to, elems);
  };
}

}  // namespace gatun
