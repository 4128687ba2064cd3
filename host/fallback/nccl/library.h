// libnccl and the CUDA driver as this process finds them at run time: the few functions that are used, looked up once. Gatun
// neither links them nor needs their headers; the declarations here are NCCL 2.28.9's and CUDA 13.0's, whose numbers and
// layouts later versions keep.
//
// A library that is already loaded under the same name, such as PyTorch's copy of NCCL, is the one that is taken, wherever
// it lies. Nothing is ever unloaded.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "protocols/status.h"

namespace gatun {

using NcclComm = void*;
using CudaContext = void*;
using CudaStream = void*;
using CudaAddress = unsigned long long;

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

struct NcclUniqueId {
  char bytes[128] = {};
};

// What is left at its first value is NCCL's choice. An older NCCL reads as much of it as it knows.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
  int channels_per_net_peer = INT_MIN;
  int nvlink_centric_sched = INT_MIN;
};

// Element types and operators are passed as numbers: protocols/types.h has NCCL's.
struct NcclLibrary {
  static constexpr int kOldest = 21400;  // the first whose communicators need not block

  NcclResult (*version_number)(int* version) = nullptr;
  const char* (*error_string)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclComm comm) = nullptr;
  NcclResult (*unique_id)(NcclUniqueId* id) = nullptr;
  NcclResult (*init)(NcclComm* comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  NcclResult (*async_error)(NcclComm comm, NcclResult* state) = nullptr;
  NcclResult (*finalize)(NcclComm comm) = nullptr;
  NcclResult (*destroy)(NcclComm comm) = nullptr;
  NcclResult (*drop)(NcclComm comm) = nullptr;  // ncclCommAbort
  NcclResult (*all_reduce)(const void*, void*, size_t count, int type, int op, NcclComm, CudaStream) = nullptr;
  NcclResult (*reduce)(const void*, void*, size_t count, int type, int op, int root, NcclComm, CudaStream) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, size_t count, int type, int op, NcclComm, CudaStream) = nullptr;
  NcclResult (*all_gather)(const void*, void*, size_t count, int type, NcclComm, CudaStream) = nullptr;
  NcclResult (*broadcast)(const void*, void*, size_t count, int type, int root, NcclComm, CudaStream) = nullptr;

  int version = 0;  // 22809 is 2.28.9
  std::string path;

  std::string text() const;  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"
  // "ncclAllReduce fails: ..." with what NCCL says of it and the fix. comm may be null.
  Status error(const char* call, NcclResult result, NcclComm comm) const;
};

struct CudaDriver {
  enum Result : int { kSuccess = 0, kInvalidValue = 1, kNoDevice = 100, kNotReady = 600 };
  enum Attribute : int { kMemoryType = 2, kDeviceOrdinal = 9 };  // of a pointer
  static constexpr unsigned kMemoryHost = 1;
  static constexpr unsigned kNonBlocking = 1;  // a stream that does not wait for the default stream

  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*error_text)(int result, const char** text) = nullptr;
  int (*retain_context)(CudaContext* context, int device) = nullptr;
  int (*release_context)(int device) = nullptr;
  int (*push_context)(CudaContext context) = nullptr;
  int (*pop_context)(CudaContext* context) = nullptr;
  int (*create_stream)(CudaStream* stream, unsigned flags) = nullptr;
  int (*query_stream)(CudaStream stream) = nullptr;
  int (*destroy_stream)(CudaStream stream) = nullptr;
  int (*pointer_attribute)(void* value, int attribute, CudaAddress address) = nullptr;
  int (*copy_to_host)(void* host, CudaAddress device, size_t bytes, CudaStream stream) = nullptr;
  int (*copy_to_device)(CudaAddress device, const void* host, size_t bytes, CudaStream stream) = nullptr;
  int (*copy_on_device)(CudaAddress to, CudaAddress from, size_t bytes, CudaStream stream) = nullptr;

  int devices = 0;

  std::string failure(const char* call, int result) const;  // "cuInit fails: no device (CUDA error 100)"
  Status error(const char* call, int result) const;         // that, with the fix
};

// kUnsupported says what is missing, and the fix.
Result<NcclLibrary> load_nccl(const std::string& file);
Result<CudaDriver> load_cuda(const std::string& file);  // with at least one device

}  // namespace gatun
