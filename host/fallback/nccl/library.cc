#include "host/fallback/nccl/library.h"

#include <dlfcn.h>

#include <cstring>
#include <span>

namespace gatun {
namespace {

struct Symbol {
  const char* name;
  void* to;  // the function pointer that is set
};

// "" if all symbols are there, else the name of one that is not.
std::string find(void* library, std::span<const Symbol> symbols) {
  for (const Symbol& symbol : symbols) {
    void* address = ::dlsym(library, symbol.name);
    if (address == nullptr) return symbol.name;
    std::memcpy(symbol.to, &address, sizeof address);
  }
  return "";
}

std::string path_of(const void* address, const std::string& otherwise) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

Status unsupported(std::string text) {
  return {Code::kUnsupported, std::move(text)};
}

std::string last_load_error(const std::string& file) {
  const char* text = ::dlerror();
  return text != nullptr ? text : file;
}

std::string number_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

}  // namespace

std::string NcclLibrary::text() const {
  return "NCCL " + number_text(version) + " (" + path + ")";
}

Status NcclLibrary::error(const char* call, NcclResult result, NcclComm comm) const {
  std::string text = std::string(call) + " fails: " + error_string(result);
  const char* words = comm != nullptr ? last_error(comm) : nullptr;
  if (words != nullptr && words[0] != 0) text += std::string(" (") + words + ")";
  if (result == NcclResult::kRemoteError) {
    return {Code::kRankLost, text + ": another rank, or the network to it, is gone; see that rank's own error"};
  }
  const bool system = result == NcclResult::kSystemError || result == NcclResult::kUnhandledCudaError;
  return {system ? Code::kSystem : Code::kInternal, text + "; NCCL_DEBUG=WARN in the environment makes NCCL say more"};
}

std::string CudaDriver::failure(const char* call, int result) const {
  const char* text = nullptr;
  if (error_text(result, &text) != kSuccess || text == nullptr) text = "an error that the driver does not name";
  return std::string(call) + " fails: " + text + " (CUDA error " + std::to_string(result) + ")";
}

Status CudaDriver::error(const char* call, int result) const {
  return {Code::kSystem,
          failure(call, result) + "; after an error of a kernel or of the device only a new process can use the GPU"};
}

Result<NcclLibrary> load_nccl(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unsupported("NCCL is not there: " + last_load_error(file) +
                       "; install libnccl2, or import a PyTorch for CUDA first");
  }
  NcclLibrary nccl;
  const Symbol number[] = {{"ncclGetVersion", &nccl.version_number}};
  if (!find(library, number).empty() || nccl.version_number(&nccl.version) != NcclResult::kSuccess) {
    return unsupported(file + " is not NCCL: it does not tell its version");
  }
  nccl.path = path_of(reinterpret_cast<const void*>(nccl.version_number), file);
  if (nccl.version < NcclLibrary::kOldest) {
    return unsupported(nccl.text() +
                       " is older than 2.14, the first whose communicators need not block; install a newer one");
  }
  const Symbol symbols[] = {
      {"ncclGetErrorString", &nccl.error_string},   {"ncclGetLastError", &nccl.last_error},
      {"ncclGetUniqueId", &nccl.unique_id},         {"ncclCommInitRankConfig", &nccl.init},
      {"ncclCommGetAsyncError", &nccl.async_error}, {"ncclCommFinalize", &nccl.finalize},
      {"ncclCommDestroy", &nccl.destroy},           {"ncclCommAbort", &nccl.drop},
      {"ncclAllReduce", &nccl.all_reduce},          {"ncclReduce", &nccl.reduce},
      {"ncclReduceScatter", &nccl.reduce_scatter},  {"ncclAllGather", &nccl.all_gather},
      {"ncclBroadcast", &nccl.broadcast},
  };
  const std::string missing = find(library, symbols);
  if (!missing.empty()) return unsupported(nccl.text() + " has no " + missing + "; install NVIDIA's libnccl2");
  return nccl;
}

Result<CudaDriver> load_cuda(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unsupported("the CUDA driver is not there: " + last_load_error(file) + "; it comes with NVIDIA's driver");
  }
  CudaDriver cuda;
  const Symbol symbols[] = {
      {"cuInit", &cuda.init},
      {"cuDeviceGetCount", &cuda.device_count},
      {"cuGetErrorString", &cuda.error_text},
      {"cuDevicePrimaryCtxRetain", &cuda.retain_context},
      {"cuDevicePrimaryCtxRelease_v2", &cuda.release_context},
      {"cuCtxPushCurrent_v2", &cuda.push_context},
      {"cuCtxPopCurrent_v2", &cuda.pop_context},
      {"cuStreamCreate", &cuda.create_stream},
      {"cuStreamQuery", &cuda.query_stream},
      {"cuStreamDestroy_v2", &cuda.destroy_stream},
      {"cuPointerGetAttribute", &cuda.pointer_attribute},
      {"cuMemcpyDtoHAsync_v2", &cuda.copy_to_host},
      {"cuMemcpyHtoDAsync_v2", &cuda.copy_to_device},
      {"cuMemcpyDtoDAsync_v2", &cuda.copy_on_device},
  };
  const std::string missing = find(library, symbols);
  if (!missing.empty()) return unsupported(file + " is not the driver of CUDA 11 or later: it has no " + missing);
  int result = cuda.init(0);
  if (result == CudaDriver::kSuccess) result = cuda.device_count(&cuda.devices);
  if (result == CudaDriver::kNoDevice || (result == CudaDriver::kSuccess && cuda.devices == 0)) {
    return unsupported("no CUDA device: there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it");
  }
  if (result != CudaDriver::kSuccess) return unsupported(cuda.failure("cuInit", result) + "; see whether nvidia-smi works");
  return cuda;
}

}  // namespace gatun
