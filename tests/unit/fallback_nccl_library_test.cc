#include <iostream>

#include "fallback_nccl_fixture.h"
#include "host/fallback/nccl/library.h"
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>) && __has_include(<cuda.h>)
#include <cuda.h>
#include <nccl.h>
#define GATUN_REAL_HEADERS 1
#endif

using namespace gatun;

namespace {

// Why there is no engine with these files.
Status refusal(const NcclFiles& files) {
  Group alone(1);
  auto engine = make_nccl_engine(&alone[0], nullptr, files);
  CHECK_FALSE(engine.ok());
  CHECK(engine.status().code() == Code::kUnsupported);
  return engine.status();
}

}  // namespace

#if GATUN_REAL_HEADERS
TEST_CASE("nccl_library__declares_what_the_headers_declare", "[nccl]") {
  static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
  CHECK(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
  CHECK(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
  CHECK(static_cast<int>(NcclResult::kSystemError) == ncclSystemError);
  CHECK(static_cast<int>(NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError);
  CHECK(int{CudaDriver::kNotReady} == CUDA_ERROR_NOT_READY);
  CHECK(int{CudaDriver::kNoDevice} == CUDA_ERROR_NO_DEVICE);
  CHECK(int{CudaDriver::kInvalidValue} == CUDA_ERROR_INVALID_VALUE);
  CHECK(int{CudaDriver::kMemoryType} == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  CHECK(int{CudaDriver::kDeviceOrdinal} == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  CHECK(CudaDriver::kMemoryHost == CU_MEMORYTYPE_HOST);
  CHECK(CudaDriver::kNonBlocking == CU_STREAM_NON_BLOCKING);
  CHECK(static_cast<int>(Type::kBF16) == ncclBfloat16);
  CHECK(static_cast<int>(Type::kF64) == ncclFloat64);
  CHECK(static_cast<int>(Type::kU8) == ncclUint8);
  CHECK(static_cast<int>(Op::kAvg) == ncclAvg);
  CHECK(static_cast<int>(Op::kMin) == ncclMin);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  // Byte for byte what the header's initializer makes of the same choices.
  ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  NcclConfig ours;
  theirs.blocking = ours.blocking = 0;
  theirs.collnetEnable = ours.collnet_enable = 0;
  theirs.netName = ours.net_name = "x";
  theirs.version = ours.version;
  theirs.size = ours.size;
  CHECK(std::memcmp(&ours, &theirs, sizeof ours) == 0);
#endif
}
#endif

TEST_CASE("load_nccl__reads_the_version_of_the_real_library", "[nccl]") {
  const auto nccl = load_nccl("libnccl.so.2");
  if (!nccl.ok()) {
    CHECK(nccl.status().code() == Code::kUnsupported);
    std::cout << "[skipped] load_nccl__reads_the_version_of_the_real_library: " << nccl.status().message() << "\n";
    return;
  }
  int version = 0;
  CHECK(nccl.value().version_number(&version) == NcclResult::kSuccess);
  CHECK(nccl.value().version == version);
  CHECK(version >= NcclLibrary::kOldest);
  INFO(nccl.value().text());
  CHECK(nccl.value().text().find("libnccl.so.2)") != std::string::npos);
  CHECK(nccl.value().error_string(NcclResult::kSuccess) != nullptr);
}

TEST_CASE("load_nccl__takes_the_copy_that_is_loaded_already", "[nccl]") {
  void* loaded = ::dlopen(GATUN_FAKE_NCCL_NAME, RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) CHECK_FALSE(load_nccl(GATUN_FAKE_NCCL_NAME).ok());  // no folder that is searched has it
  const Fake fake;
  const auto nccl = load_nccl(GATUN_FAKE_NCCL_NAME);
  REQUIRE(nccl.ok());
  CHECK(std::filesystem::equivalent(nccl.value().path, GATUN_FAKE_NCCL));
  CHECK(nccl.value().version == 22809);
}

TEST_CASE("make_nccl_engine__says_what_is_missing", "[nccl]") {
  Fake fake;
  CHECK(says(refusal({GATUN_FAKE_NCCL, "libgatun_absent.so.1"}), "the CUDA driver is not there: libgatun_absent.so.1"));
  CHECK(says(refusal({"libgatun_absent.so.2", GATUN_FAKE_NCCL}), "NCCL is not there: libgatun_absent.so.2"));
  CHECK(says(refusal({"libm.so.6", GATUN_FAKE_NCCL}), "libm.so.6 is not NCCL"));
  CHECK(says(refusal({GATUN_FAKE_NCCL, "libm.so.6"}), "libm.so.6 is not the driver"));
  fake->version = 21304;
  CHECK(says(refusal(kFake), "NCCL 2.13.4 ("));
  CHECK(says(refusal(kFake), "is older than 2.14"));
  fake->devices = 0;
  CHECK(says(refusal(kFake), "no CUDA device"));
  fake->init_result = CudaDriver::kNoDevice;
  CHECK(says(refusal(kFake), "no CUDA device"));
  fake->init_result = 803;
  CHECK(says(refusal(kFake), "cuInit fails: fake driver error (CUDA error 803); see whether nvidia-smi works"));
}
