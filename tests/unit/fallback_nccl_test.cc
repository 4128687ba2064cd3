#include <dlfcn.h>

#include <cmath>
#include <iostream>

#include "fallback_engine_cases.h"
#include "fallback_nccl_fixture.h"
#include "host/fallback/nccl/library.h"

using namespace gatun;

namespace {

const Contract kSum = {Collective::kAllReduce, Type::kF32, Op::kSum, 0, 1000, 0};

Result<std::unique_ptr<Engine>> make_fake(Mesh* mesh) {
  return make_nccl_engine(mesh, make_exact_engine(mesh, {}), kFake);
}

EngineGroup make_group(uint32_t ranks) {
  return EngineGroup(ranks, make_fake);
}

std::vector<Status> run_all(EngineGroup& group, const Contract& contract, TimeNs deadline) {
  return on_ranks(group.ranks(), [&](uint32_t r) {
    std::vector<double> data(contract.count * group.ranks(), 1.0);
    return group.engines[r]->run(contract, data.data(), data.data(), deadline);
  });
}

}  // namespace

TEST_CASE("nccl__adds_every_type_with_every_op", "[nccl]") {
  Fake fake;
  uint32_t seed = 1;
  for (uint32_t ranks : {2u, 3u, 4u}) {
    EngineGroup group = make_group(ranks);
    CHECK(group.engines[0]->name() == std::string("nccl"));
    for (Type type : kAllTypes) {
      for (Op op : kAllOps) {
        for (Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
          ++seed;
          const int before = fake->collectives;
          group.check({{collective, type, op, seed % ranks, 500, 0}, seed % 2 == 0, seed % 4 * 8}, {}, small_numbers(seed));
          const bool eight = type == Type::kE4M3 || type == Type::kE5M2;
          const bool is_float = is_narrow(type) || type == Type::kF32 || type == Type::kF64;
          const bool is_signed = type == Type::kI8 || type == Type::kI32 || type == Type::kI64;
          const bool by_host = eight || (is_float && (op == Op::kMin || op == Op::kMax)) || (is_signed && op == Op::kAvg);
          CHECK(fake->collectives - before == (by_host ? 0 : static_cast<int>(ranks)));
        }
      }
    }
    CHECK(fake->copies > 0);
  }
}

TEST_CASE("nccl__does_every_collective_at_any_length", "[nccl]") {
  const Fake fake;
  uint32_t seed = 100;
  for (uint32_t ranks : {1u, 2u, 5u}) {
    EngineGroup group = make_group(ranks);
    for (Collective collective : kAllCollectives) {
      for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{20'001}}) {
        for (Type type : kAllTypes) {
          ++seed;
          group.check({{collective, type, kAllOps[seed % 5], seed % ranks, count, 0}, seed % 2 == 0, seed % 9 * 8}, {},
                      small_numbers(seed));
        }
      }
    }
  }
}

TEST_CASE("nccl__keeps_a_nan_that_its_own_maximum_would_lose", "[nccl]") {
  const Fake fake;
  EngineGroup group = make_group(2);
  std::vector<std::vector<float>> data = {{1, std::nanf("")}, {2, 3}};
  require_ok(on_ranks(2, [&](uint32_t r) {
    return group.engines[r]->run({Collective::kAllReduce, Type::kF32, Op::kMax, 0, 2, 0}, data[r].data(), data[r].data(),
                                 soon());
  }));
  CHECK(data[0][0] == 2);
  CHECK(std::isnan(data[0][1]));
}

TEST_CASE("nccl__begins_its_communicator_with_the_first_collective_that_needs_it", "[nccl]") {
  Fake fake;
  {
    EngineGroup group = make_group(3);
    CHECK(fake->contexts == 0);
    group.check({{Collective::kBarrier, Type::kU8, Op::kSum, 0, 0, 0}}, {}, small_numbers(1));
    CHECK(fake->created == 0);
    for (uint32_t i = 0; i < 3; ++i) group.check({kSum}, {}, small_numbers(i));
    CHECK(fake->created == 3);
    CHECK(fake->collectives == 9);
    CHECK(fake->in_progress >= 3 * (2 + 3));  // of init and of each collective
    CHECK(fake->contexts == 3);
  }
  CHECK(fake->finalized == 3);
  CHECK(fake->destroyed == 3);
  CHECK(fake->aborted == 0);
  CHECK(fake->contexts == 0);
  CHECK(fake->streams == 0);
}

TEST_CASE("nccl__serves_two_communicators_at_once", "[nccl]") {
  Fake fake;
  EngineGroup one = make_group(2), two = make_group(3);
  std::atomic<bool> failed{false};
  const auto work = [&](EngineGroup& group, float number) {
    for (int i = 0; i < 50; ++i) {
      const auto statuses = on_ranks(group.ranks(), [&](uint32_t r) {
        std::vector<float> data(kSum.count, number);
        Status status = group.engines[r]->run(kSum, data.data(), data.data(), soon());
        for (float value : data) failed = failed || value != number * static_cast<float>(group.ranks());
        return status;
      });
      for (const Status& status : statuses) failed = failed || !status.ok();
    }
  };
  std::thread other([&] { work(two, 5); });
  work(one, 3);
  other.join();
  CHECK_FALSE(failed);
  CHECK(fake->created == 5);
}

TEST_CASE("nccl__refuses_memory_that_it_cannot_take_and_stays_usable", "[nccl]") {
  Fake fake;
  EngineGroup group = make_group(1);
  Engine& engine = *group.engines[0];
  std::vector<float> here(8, 1), elsewhere(8, 1);
  const Contract contract{Collective::kAllReduce, Type::kF32, Op::kSum, 0, 8, 0};
  const auto names = [&](FakeGpu::Range& range, const char* part) {
    range.begin = reinterpret_cast<const std::byte*>(elsewhere.data());
    range.bytes = elsewhere.size() * sizeof(float);
    for (const bool sends : {true, false}) {
      const float* send = sends ? elsewhere.data() : here.data();
      const Status status = engine.run(contract, send, sends ? here.data() : elsewhere.data(), soon());
      CHECK(status.code() == Code::kInvalidArgument);
      INFO(status.message());
      CHECK(says(status, std::string(sends ? "send" : "recv") + part));
    }
    range.bytes = 0;
  };
  names(fake->host, " is memory of the host");
  require_ok({engine.run(contract, here.data(), here.data(), soon())});
  names(fake->other_gpu, " is memory of GPU 1, and this communicator uses GPU 0");
  require_ok({engine.run(contract, here.data(), here.data(), soon())});
  const Status askew = engine.run({Collective::kAllReduce, Type::kF32, Op::kSum, 0, 4, 0},
                                  reinterpret_cast<const std::byte*>(here.data()) + 2, here.data(), soon());
  CHECK(askew.code() == Code::kInvalidArgument);
  CHECK(says(askew, "send is not aligned to its elements, which are of 4 bytes"));
  require_ok({engine.run(contract, here.data(), here.data(), soon())});
}

TEST_CASE("nccl__ends_with_an_error_that_comes_in_the_middle", "[nccl]") {
  Fake fake;
  {
    EngineGroup group = make_group(2);
    require_ok(run_all(group, kSum, soon()));
    fake->async_error = static_cast<int>(NcclResult::kRemoteError);
    for (const Status& status : run_all(group, kSum, kNever)) {
      INFO(status.message());
      CHECK(status.code() == Code::kRankLost);
      CHECK(says(status, "ncclAllReduce fails: fake remote error (fake last words)"));
    }
    CHECK(fake->aborted == 2);
    CHECK(fake->destroyed == 0);
    for (const Status& status : run_all(group, kSum, kNever)) CHECK(status.code() == Code::kRankLost);  // and begins nothing
    CHECK(fake->created == 2);
  }
  CHECK(fake->aborted == 2);
  CHECK(fake->contexts == 0);
}

TEST_CASE("nccl__ends_at_the_deadline_of_an_init_that_never_completes", "[nccl]") {
  Fake fake;
  uint32_t ranks = 2;  // of which one does not come
  SECTION("since a rank is missing") {}
  SECTION("whatever the ranks do") {
    ranks = 1;
    fake->init_polls = FakeGpu::kForEver;
  }
  EngineGroup group = make_group(ranks);
  std::vector<float> data(kSum.count);
  const Status status = group.engines[0]->run(kSum, data.data(), data.data(), now_ns() + 50 * kMs);
  INFO(status.message());
  CHECK(status.code() == Code::kTimeout);
  CHECK(says(status, "ncclCommInitRankConfig has not completed before the deadline"));
  CHECK(fake->aborted == 1);
  CHECK(fake->collectives == 0);
}

TEST_CASE("nccl__ends_at_the_deadline_of_a_collective_that_never_completes", "[nccl]") {
  Fake fake;
  EngineGroup group = make_group(2);
  require_ok(run_all(group, kSum, soon()));
  std::atomic<int>* stuck = &fake->stream_polls;
  const char* what = "ncclAllReduce has not completed before the deadline";
  Contract contract = kSum;
  SECTION("on the stream") {}
  SECTION("on its way there") {
    stuck = &fake->enqueue_polls;
  }
  SECTION("as a copy") {
    contract.op = Op::kMax;
    what = "cuMemcpyDtoHAsync has not completed before the deadline";
  }
  *stuck = FakeGpu::kForEver;
  for (const Status& status : run_all(group, contract, now_ns() + 50 * kMs)) {
    INFO(status.message());
    CHECK(status.code() == Code::kTimeout);
    CHECK(says(status, what));
  }
  CHECK(fake->aborted == 2);
}

TEST_CASE("nccl__comes_back_from_an_end_that_hangs", "[nccl]") {
  Fake fake;
  const bool in_error = GENERATE(true, false);
  {
    EngineGroup group = make_group(1);
    require_ok(run_all(group, kSum, soon()));
    fake->end_hangs = true;
    if (in_error) {
      fake->stream_polls = FakeGpu::kForEver;
      const Status status = run_all(group, kSum, now_ns() + 10 * kMs)[0];
      CHECK(status.code() == Code::kTimeout);
      CHECK(says(status, "ncclCommAbort does not return either"));
    }
  }
  while (fake->hanging == 0) std::this_thread::yield();
  CHECK(fake->contexts == 1);  // left alone with what hangs
  CHECK(fake->streams == 1);
  fake->end_hangs = false;
  while (fake->aborted + fake->destroyed == 0) std::this_thread::yield();
  fake->contexts = fake->streams = 0;
}

TEST_CASE("nccl__returns_at_interrupt", "[nccl]") {
  Fake fake;
  EngineGroup group = make_group(2);
  std::atomic<int>* stuck = &fake->init_polls;
  SECTION("of an init") {}
  SECTION("of a collective") {
    require_ok(run_all(group, kSum, soon()));
    stuck = &fake->stream_polls;
  }
  *stuck = FakeGpu::kForEver;
  const int before = fake->collectives + fake->created;
  std::thread other([&] {
    while (fake->collectives + fake->created < before + 2) std::this_thread::yield();
    for (uint32_t r = 0; r < 2; ++r) group.meshes[r].interrupt(Status(Code::kAborted, "enough"));
  });
  for (const Status& status : run_all(group, kSum, kNever)) CHECK(status.code() == Code::kAborted);
  other.join();
  CHECK(fake->aborted == 2);
}

TEST_CASE("nccl__names_the_call_that_fails", "[nccl]") {
  Fake fake;
  struct Failure {
    const char* call;
    Collective collective;
    Op op;
    const char* says;
  };
  const Failure failure = GENERATE(
      Failure{"ncclGetUniqueId", Collective::kAllReduce, Op::kSum, "ncclGetUniqueId fails: "},
      Failure{"ncclCommInitRankConfig", Collective::kAllReduce, Op::kSum,
              "ncclCommInitRankConfig fails: fake invalid usage"},
      Failure{"ncclAllReduce", Collective::kAllReduce, Op::kSum,
              "ncclAllReduce fails: fake invalid usage (fake last words)"},
      Failure{"ncclReduce", Collective::kReduce, Op::kSum, "ncclReduce fails: "},
      Failure{"ncclReduceScatter", Collective::kReduceScatter, Op::kSum, "ncclReduceScatter fails: "},
      Failure{"ncclAllGather", Collective::kAllGather, Op::kSum, "ncclAllGather fails: "},
      Failure{"ncclBroadcast", Collective::kBroadcast, Op::kSum, "ncclBroadcast fails: "},
      Failure{"cuPointerGetAttribute", Collective::kAllReduce, Op::kSum, "cuPointerGetAttribute fails: fake launch failure"},
      Failure{"cuDevicePrimaryCtxRetain", Collective::kAllReduce, Op::kSum, "cuDevicePrimaryCtxRetain fails: "},
      Failure{"cuStreamCreate", Collective::kAllReduce, Op::kSum, "cuStreamCreate fails: "},
      Failure{"cuStreamQuery", Collective::kAllReduce, Op::kSum,
              "ncclAllReduce fails: fake launch failure (CUDA error 719)"},
      Failure{"cuMemcpyDtoHAsync", Collective::kAllReduce, Op::kMax, "cuMemcpyDtoHAsync fails: fake launch failure"},
      Failure{"cuMemcpyHtoDAsync", Collective::kAllReduce, Op::kMax, "cuMemcpyHtoDAsync fails: "});
  fake->failing = failure.call;
  {
    EngineGroup group = make_group(2);
    const auto statuses = run_all(group, {failure.collective, Type::kF32, failure.op, 0, 100, 0}, soon());
    INFO(failure.call << ": " << statuses[0].message() << "; " << statuses[1].message());
    CHECK(says(statuses[0], failure.says));
    CHECK_FALSE(statuses[1].ok());
    if (failure.call == std::string("ncclGetUniqueId")) CHECK(says(statuses[1], "rank 0 could not begin a communicator"));
    CHECK(fake->aborted == fake->created);
  }
  CHECK(fake->contexts == 0);
  CHECK(fake->streams == 0);
}

TEST_CASE("nccl__names_the_copy_within_the_gpu_that_fails", "[nccl]") {
  Fake fake;
  fake->failing = "cuMemcpyDtoDAsync";
  EngineGroup group = make_group(2);
  const auto statuses = run_all(group, {Collective::kReduceScatter, Type::kF32, Op::kSum, 0, 100, 0}, soon());
  CHECK(statuses[0].ok());  // its part begins where the array does
  INFO(statuses[1].message());
  CHECK(says(statuses[1], "cuMemcpyDtoDAsync fails: fake launch failure"));
}

TEST_CASE("nccl__aborts_what_cannot_be_flushed", "[nccl]") {
  Fake fake;
  {
    EngineGroup group = make_group(2);
    require_ok(run_all(group, kSum, soon()));
    fake->failing = "ncclCommFinalize";
  }
  CHECK(fake->destroyed == 0);
  CHECK(fake->aborted == 2);
}

TEST_CASE("nccl__ends_when_a_rank_is_lost_before_it_has_the_id", "[nccl]") {
  const Fake fake;
  EngineGroup group = make_group(2);
  const std::string lost = group.meshes[0].card(0).text(0);
  group.engines[0].reset();
  group.meshes.close(0);
  std::vector<float> data(kSum.count);
  const Status status = group.engines[1]->run(kSum, data.data(), data.data(), soon());
  INFO(status.message());
  CHECK(status.code() == Code::kRankLost);
  CHECK(says(status, lost));
}

TEST_CASE("nccl__leaves_no_descriptor_and_no_thread", "[nccl]") {
  const Fake fake;
  const size_t fds = descriptors(), tasks = threads();
  for (uint32_t i = 0; i < 10; ++i) {
    EngineGroup group = make_group(3);
    group.check({kSum, true}, {}, small_numbers(i));
  }
  CHECK(descriptors() == fds);
  CHECK(threads() == tasks);
}

// The real thing: a rank per GPU, two at most. Memory comes from the driver itself.
TEST_CASE("nccl__adds_on_real_gpus", "[nccl]") {
  Group probe(1);
  if (auto engine = make_nccl_engine(&probe[0], make_exact_engine(&probe[0], {})); !engine.ok()) {
    CHECK(engine.status().code() == Code::kUnsupported);
    std::cout << "[skipped] nccl__adds_on_real_gpus: " << engine.status().message() << "\n";
    return;
  }
  const CudaDriver cuda = load_cuda("libcuda.so.1").value();
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto allocate = reinterpret_cast<int (*)(CudaAddress*, size_t)>(::dlsym(driver, "cuMemAlloc_v2"));
  const auto release = reinterpret_cast<int (*)(CudaAddress)>(::dlsym(driver, "cuMemFree_v2"));
  const auto settle = reinterpret_cast<int (*)()>(::dlsym(driver, "cuCtxSynchronize"));
  const auto ranks = static_cast<uint32_t>(std::min(cuda.devices, 2));
  EngineGroup group(ranks, [](Mesh* mesh) { return make_nccl_engine(mesh, make_exact_engine(mesh, {})); });
  for (const auto& [type, op] : {std::pair{Type::kF32, Op::kSum},
                                 {Type::kBF16, Op::kAvg},
                                 {Type::kE4M3, Op::kSum},
                                 {Type::kF32, Op::kMax},
                                 {Type::kI32, Op::kMin}}) {
    constexpr size_t kElems = 100'000;
    const size_t bytes = kElems * elem_bytes(type);
    std::vector<Bytes> inputs(ranks, Bytes(bytes)), outputs(ranks, Bytes(bytes));
    const auto fill = small_numbers(3);
    for (Bytes& input : inputs) fill(type, input.data(), kElems);
    require_ok(on_ranks(ranks, [&](uint32_t r) {
      CudaContext context = nullptr;
      CudaAddress memory = 0;
      if (cuda.retain_context(&context, static_cast<int>(r)) != 0 || cuda.push_context(context) != 0 ||
          allocate(&memory, bytes) != 0 || cuda.copy_to_device(memory, inputs[r].data(), bytes, nullptr) != 0 ||
          settle() != 0) {
        return Status(Code::kSystem, "the GPU gives no memory");
      }
      auto* data = reinterpret_cast<void*>(memory);
      Status status = group.engines[r]->run({Collective::kAllReduce, type, op, 0, kElems, 0}, data, data, soon());
      if (cuda.copy_to_host(outputs[r].data(), memory, bytes, nullptr) != 0 || settle() != 0) {
        status = Status(Code::kSystem, "the GPU does not give its memory back");
      }
      release(memory);
      cuda.pop_context(&context);
      cuda.release_context(static_cast<int>(r));
      return status;
    }));
    const Bytes want = reduced(type, op, {}, inputs, kElems);
    INFO(name(type) << " " << name(op));
    for (const Bytes& output : outputs) CHECK((output == want));
  }
}
