// Memory of a GPU for RDMA: the GPU's driver gives a dma-buf for it, a descriptor of its pages, and the RDMA device maps
// that.
//
// No device that takes dma-bufs has been tried yet: soft-RoCE refuses them. Operations take host memory only.
#pragma once

#include "host/transport/verbs_device.h"

namespace gatun {

// False also where no CUDA is loaded: then there is no such memory.
bool is_gpu_memory(std::span<std::byte> memory);

// access: IBV_ACCESS_*.
Result<VerbsKey> make_gpu_key(const OpenDevice& device, ibv_pd* domain, std::span<std::byte> memory, int access);

// Can the device map dma-bufs at all? Asks it with a descriptor that is none.
bool takes_dmabuf(ibv_context* context);

}  // namespace gatun
