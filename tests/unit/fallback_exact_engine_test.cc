#include "fallback_engine_cases.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace gatun;

namespace {

constexpr Collective kReductions[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce};
constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                               Collective::kBroadcast, Collective::kReduce,        Collective::kBarrier};

EngineGroup make_group(const std::vector<uint32_t>& groups) {
  uint32_t ranks = 0;
  for (uint32_t members : groups) ranks += members;
  return EngineGroup(ranks,
                     [&](Mesh* mesh) -> Result<std::unique_ptr<Engine>> { return make_exact_engine(mesh, {groups}); });
}

struct SpecialValues {
  explicit SpecialValues(uint32_t seed) : values(seed) {}
  void operator()(Type type, uint8_t* to, size_t elems) { values.fill(type, to, elems); }
  Values values;
};

}  // namespace

TEST_CASE("exact__equals_the_switch_for_every_type_op_and_tree", "[exact]") {
  uint32_t seed = 1;
  for (const auto& groups : std::vector<std::vector<uint32_t>>{{3}, {4}, {2, 2}, {1, 2, 2}}) {
    EngineGroup group = make_group(groups);
    for (Type type : kAllTypes) {
      for (Op op : kAllOps) {
        ++seed;
        auto fill = [values = std::make_shared<SpecialValues>(seed)](Type t, uint8_t* to, size_t elems) {
          (*values)(t, to, elems);
        };
        const Collective collective = kReductions[seed % 3];
        group.check({{Collective::kAllReduce, type, op, 0, seed % 2 ? 2500u : 17'001u, 0}, seed % 3 == 0, seed % 4}, groups,
                    fill);
        group.check({{collective, type, op, seed % group.ranks(), 700, 0}, seed % 3 == 0, 0}, groups, fill);
      }
    }
  }
}

TEST_CASE("exact__does_every_collective_at_any_length", "[exact]") {
  uint32_t seed = 100;
  for (const auto& groups : std::vector<std::vector<uint32_t>>{{1}, {2}, {3}, {3, 2}, {8}}) {
    EngineGroup group = make_group(groups);
    for (Collective collective : kAll) {
      for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{1023}, uint64_t{20'001}}) {
        for (const bool in_place : {false, true}) {
          auto fill = [values = std::make_shared<SpecialValues>(++seed)](Type t, uint8_t* to, size_t elems) {
            (*values)(t, to, elems);
          };
          const Type type = kAllTypes[seed % 12];
          group.check({{collective, type, kAllOps[seed % 5], seed % group.ranks(), count, 0}, in_place, seed % 9}, groups,
                      fill);
        }
      }
    }
  }
}

// Several blocks, with an odd rest, so that phases overlap.
TEST_CASE("exact__pipelines_long_arrays", "[exact]") {
  uint32_t seed = 500;
  const std::vector<uint32_t> groups = {2, 1};
  EngineGroup group = make_group(groups);
  for (Collective collective : kAll) {
    for (const bool in_place : {false, true}) {
      auto fill = [random = std::make_shared<std::mt19937>(++seed)](Type, uint8_t* to, size_t elems) {
        for (size_t i = 0; i < elems; ++i) {
          const float value = static_cast<float>((*random)()) * 1e-5f;
          std::memcpy(to + 4 * i, &value, 4);
        }
      };
      group.check({{collective, Type::kF32, Op::kAvg, 1, 450'001, 0}, in_place, 1}, groups, fill);
    }
  }
}

TEST_CASE("exact__keeps_its_bits_whatever_the_caller_set", "[exact]") {
#if defined(__x86_64__)
  const std::vector<uint32_t> groups = {2};
  EngineGroup group = make_group(groups);
  std::vector<float> in = {std::numeric_limits<float>::denorm_min(), 1.0f + 1.0f / (1 << 23)};
  std::vector<std::vector<float>> out(2, std::vector<float>(2));
  require_ok(on_ranks(2, [&](uint32_t r) {
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040 | 0x4000);  // flush denormals, round up
    Status status =
        group.engines[r]->run({Collective::kAllReduce, Type::kF32, Op::kSum, 0, 2, 0}, in.data(), out[r].data(), soon());
    const bool kept = (_mm_getcsr() & ~0x3fu) == ((saved | 0xc040) & ~0x3fu);
    _mm_setcsr(saved);
    return kept ? status : Status(Code::kInternal, "the caller's mode is gone");
  }));
  CHECK(out[0][0] == 2 * std::numeric_limits<float>::denorm_min());
  CHECK(out[1] == out[0]);
#endif
}

TEST_CASE("exact__ends_everywhere_when_a_rank_is_lost", "[exact]") {
  EngineGroup group = make_group({4});
  const std::string lost = group.meshes[0].card(3).text(3);
  const auto statuses = on_ranks(4, [&](uint32_t r) {
    std::vector<float> data(1 << 20, 1.0f);
    if (r == 3) {
      group.engines[3].reset();
      group.meshes.close(3);
      return Status();
    }
    Status status = group.engines[r]->run({Collective::kAllReduce, Type::kF32, Op::kSum, 0, data.size(), 0}, data.data(),
                                          data.data(), now_ns() + 5 * kSecond);
    return status;
  });
  for (uint32_t r = 0; r < 3; ++r) {
    INFO(statuses[r].message());
    CHECK(statuses[r].code() == Code::kRankLost);
    CHECK(std::string(statuses[r].message()).find(lost) != std::string::npos);
  }
}

TEST_CASE("exact__returns_at_interrupt_and_at_the_deadline", "[exact]") {
  EngineGroup group = make_group({2});
  float data[4] = {};
  std::thread other([&] { group.meshes[0].interrupt(Status(Code::kAborted, "enough")); });
  CHECK(group.engines[0]->run({Collective::kAllReduce, Type::kF32, Op::kSum, 0, 4, 0}, data, data, kNever).code() ==
        Code::kAborted);
  other.join();
  const Status late =
      group.engines[1]->run({Collective::kBarrier, Type::kU8, Op::kSum, 0, 0, 0}, nullptr, nullptr, now_ns() + 50 * kMs);
  CHECK((late.code() == Code::kTimeout || late.code() == Code::kInternal));  // rank 0 may have sent its first words
}
