#include <cmath>
#include <iostream>

#include "fallback_engine_cases.h"

using namespace gatun;

namespace {

// Without Gloo there is nothing to test.
bool have_gloo(const char* test) {
  Group alone(1);
  auto engine = make_gloo_engine(&alone[0]);
  if (engine.ok()) return true;
  CHECK(engine.status().code() == Code::kUnsupported);
#if GATUN_HAVE_GLOO
  FAIL(engine.status().message());
#endif
  std::cout << "[skipped] " << test << ": " << engine.status().message() << "\n";
  return false;
}

EngineGroup make_group(uint32_t ranks) {
  return EngineGroup(ranks, [](Mesh* mesh) { return make_gloo_engine(mesh); });
}

}  // namespace

TEST_CASE("gloo__adds_every_type_with_every_op", "[gloo]") {
  if (!have_gloo("gloo__adds_every_type_with_every_op")) return;
  uint32_t seed = 1;
  for (uint32_t ranks : {2u, 3u, 4u}) {
    EngineGroup group = make_group(ranks);
    for (Type type : kAllTypes) {
      for (Op op : kAllOps) {
        ++seed;
        group.check({{Collective::kAllReduce, type, op, 0, 3000, 0}, seed % 2 == 0, seed % 4}, {}, small_numbers(seed));
        const Collective other = seed % 2 ? Collective::kReduce : Collective::kReduceScatter;
        group.check({{other, type, op, seed % ranks, 500, 0}, seed % 3 == 0, 0}, {}, small_numbers(seed));
      }
    }
  }
}

TEST_CASE("gloo__does_every_collective_at_any_length", "[gloo]") {
  if (!have_gloo("gloo__does_every_collective_at_any_length")) return;
  uint32_t seed = 100;
  for (uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    EngineGroup group = make_group(ranks);
    for (Collective collective : kAllCollectives) {
      for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{1023}, uint64_t{20'001}}) {
        for (const bool in_place : {false, true}) {
          ++seed;
          group.check({{collective, kAllTypes[seed % 12], kAllOps[seed % 5], seed % ranks, count, 0}, in_place, seed % 9},
                      {}, small_numbers(seed));
        }
      }
    }
  }
}

TEST_CASE("gloo__moves_long_arrays", "[gloo]") {
  if (!have_gloo("gloo__moves_long_arrays")) return;
  uint32_t seed = 700;
  EngineGroup group = make_group(3);
  for (Collective collective : kAllCollectives) {
    group.check({{collective, Type::kI32, Op::kSum, 2, 1'400'001, 0}, true, 1}, {}, small_numbers(++seed));
    group.check({{collective, Type::kBF16, Op::kSum, 2, 1'100'001, 0}, false, 1}, {}, small_numbers(++seed));
  }
}

TEST_CASE("gloo__gives_all_ranks_the_same_bits", "[gloo]") {
  if (!have_gloo("gloo__gives_all_ranks_the_same_bits")) return;
  constexpr size_t kElems = 50'000;
  EngineGroup group = make_group(4);
  std::mt19937 random(9);
  std::vector<std::vector<float>> data(4, std::vector<float>(kElems));
  std::vector<double> sum(kElems);
  for (auto& values : data) {
    for (size_t i = 0; i < kElems; ++i) {
      values[i] = static_cast<float>(random() % 100'000) / 7.0f;
      sum[i] += values[i];
    }
  }
  data[2][17] = std::numeric_limits<float>::quiet_NaN();
  require_ok(on_ranks(4, [&](uint32_t r) {
    return group.engines[r]->run({Collective::kAllReduce, Type::kF32, Op::kAvg, 0, kElems, 0}, data[r].data(),
                                 data[r].data(), soon());
  }));
  for (uint32_t r = 1; r < 4; ++r) REQUIRE(std::memcmp(data[0].data(), data[r].data(), kElems * 4) == 0);
  CHECK(std::isnan(data[0][17]));
  for (size_t i = 0; i < kElems; ++i) {
    if (i != 17) REQUIRE(data[0][i] == Approx(sum[i] / 4).epsilon(1e-6));
  }
}

TEST_CASE("gloo__ends_when_a_rank_is_lost_or_late_or_at_interrupt", "[gloo]") {
  if (!have_gloo("gloo__ends_when_a_rank_is_lost_or_late_or_at_interrupt")) return;
  const Contract contract{Collective::kAllReduce, Type::kF32, Op::kSum, 0, 1 << 20, 0};
  std::vector<float> data(1 << 20);
  {
    EngineGroup group = make_group(2);
    const std::string lost = group.meshes[0].card(1).text(1);
    std::thread closer([&] {
      group.engines[1].reset();
      group.meshes.close(1);
    });
    const Status status = group.engines[0]->run(contract, data.data(), data.data(), soon());
    closer.join();
    INFO(status.message());
    CHECK(status.code() == Code::kRankLost);
    CHECK(std::string(status.message()).find(lost) != std::string::npos);
  }
  {
    EngineGroup group = make_group(2);
    const Status status = group.engines[0]->run(contract, data.data(), data.data(), now_ns() + 50 * kMs);
    INFO(status.message());
    CHECK(status.code() == Code::kTimeout);
    CHECK(std::string(status.message()).find(group.meshes[0].card(1).text(1)) != std::string::npos);
  }
  {
    EngineGroup group = make_group(2);
    std::thread other([&] { group.meshes[0].interrupt(Status(Code::kAborted, "enough")); });
    CHECK(group.engines[0]->run(contract, data.data(), data.data(), kNever).code() == Code::kAborted);
    other.join();
    CHECK(group.engines[0]->run(contract, data.data(), data.data(), kNever).code() == Code::kAborted);
  }
}

TEST_CASE("gloo__leaves_no_descriptor_and_no_thread", "[gloo]") {
  if (!have_gloo("gloo__leaves_no_descriptor_and_no_thread")) return;
  const size_t fds = descriptors(), tasks = threads();
  for (uint32_t i = 0; i < 20; ++i) {
    EngineGroup group = make_group(3);
    group.check({{Collective::kAllReduce, Type::kF32, Op::kSum, 0, 100, 0}, true, 0}, {}, small_numbers(i));
  }
  CHECK(descriptors() == fds);
  CHECK(threads() == tasks);
}
