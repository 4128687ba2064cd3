#include "host/transport/buffer_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gatun {

namespace {
// Buffers of a power of two would put all their first lines into the same few cache sets.
constexpr size_t kColour = 5 * 64;
}  // namespace

Result<std::unique_ptr<BufferPool>> BufferPool::make(uint32_t count, size_t buffer_bytes) {
  const size_t stride = (buffer_bytes + 63) / 64 * 64 + kColour;
  const size_t bytes = stride * count;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kSystem, "cannot reserve " + std::to_string(bytes >> 20) + " MiB for " + std::to_string(count) +
                                     " receive buffers: " + std::strerror(errno) +
                                     "; give it more (ulimit -v), or lower the setting memory");
  }
  return std::unique_ptr<BufferPool>(new BufferPool(static_cast<std::byte*>(memory), bytes, stride, count));
}

BufferPool::BufferPool(std::byte* memory, size_t mapped_bytes, size_t stride, uint32_t count)
    : memory_(memory),
      mapped_bytes_(mapped_bytes),
      stride_(stride),
      references_(count, 0),
      free_(count),
      free_count_(count) {
  for (uint32_t i = 0; i < count; ++i) free_[i] = count - 1 - i;  // the first buffers first
}

BufferPool::~BufferPool() {
  ::munmap(memory_, mapped_bytes_);
}

BufferId BufferPool::take() {
  return free_count_ == 0 ? kNoBuffer : free_[--free_count_];
}

void BufferPool::release(BufferId id) {
  GATUN_CHECK(id < references_.size() && references_[id] > 0);
  if (--references_[id] == 0) give(id);
}

}  // namespace gatun
