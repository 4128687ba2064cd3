#include "host/transport/verbs_dmabuf.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>

#include "host/base/os.h"

namespace gatun {
namespace {

// Of CUDA's driver interface (cuda.h), which is looked for in this process only.
constexpr int kMemoryTypeAttribute = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kDeviceMemory = 2;    // CU_MEMORYTYPE_DEVICE
constexpr int kDmaBufHandle = 1;         // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
using PointerAttribute = int (*)(void* value, int attribute, uint64_t address);
using RangeHandle = int (*)(void* handle, uint64_t address, size_t bytes, int type, unsigned long long flags);

template <typename Function>
Function cuda_function(const char* name) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return nullptr;
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  ::dlclose(library);  // who loaded it keeps it
  return function;
}

}  // namespace

bool is_gpu_memory(std::span<std::byte> memory) {
  const auto attribute = cuda_function<PointerAttribute>("cuPointerGetAttribute");
  unsigned type = 0;
  return attribute != nullptr && attribute(&type, kMemoryTypeAttribute, reinterpret_cast<uint64_t>(memory.data())) == 0 &&
         type == kDeviceMemory;
}

Result<VerbsKey> make_gpu_key(const OpenDevice& device, ibv_pd* domain, std::span<std::byte> memory, int access) {
  const auto handle_of = cuda_function<RangeHandle>("cuMemGetHandleForAddressRange");
  if (handle_of == nullptr) return Status(Code::kUnsupported, "this CUDA gives no dma-bufs; it takes 11.7 or later");
  // Whole pages; the part that is meant is named to the RDMA device.
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const uint64_t begin = address / page * page;
  const uint64_t end = (address + memory.size() + page - 1) / page * page;
  int number = -1;
  if (const int error = handle_of(&number, begin, end - begin, kDmaBufHandle, 0); error != 0) {
    return Status(Code::kUnsupported,
                  "CUDA gives no dma-buf for this memory (error " + std::to_string(error) +
                      "); it must be of one allocation, and the open kernel modules of NVIDIA's driver are needed");
  }
  const Fd descriptor(number);
  VerbsKey key(::ibv_reg_dmabuf_mr(domain, address - begin, memory.size(), address, descriptor.get(), access));
  if (key == nullptr) return verbs_error(device, "register GPU memory by dma-buf", errno);
  return key;
}

bool takes_dmabuf(ibv_context* context) {
  const VerbsDomain domain(::ibv_alloc_pd(context));
  if (domain == nullptr) return false;
  const VerbsKey key(::ibv_reg_dmabuf_mr(domain.get(), 0, static_cast<size_t>(::sysconf(_SC_PAGESIZE)), 0, -1, 0));
  return errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS;
}

}  // namespace gatun
