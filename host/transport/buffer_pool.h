// BufferPool: equal buffers for received packets, handed out last-in first-out so that warm memory is used again.
//
// The memory is reserved at once and touched only as it is used. A buffer is counted: one reference for each packet that
// lies in it, since one receive can bring many packets (GRO). Owned and called by its transport's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "protocols/packet.h"
#include "protocols/status.h"

namespace gatun {

class BufferPool {
 public:
  static Result<std::unique_ptr<BufferPool>> make(uint32_t count, size_t buffer_bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  BufferId take();                                   // with no references; kNoBuffer when all are in use
  void give(BufferId id) { free_[free_count_++] = id; }  // one that was taken and has no references
  void set_references(BufferId id, uint32_t packets) { references_[id] = packets; }
  void release(BufferId id);                         // one packet's reference; the last one frees the buffer

  std::byte* data(BufferId id) const { return memory_ + stride_ * id; }
  uint32_t count() const { return static_cast<uint32_t>(references_.size()); }
  uint32_t free_count() const { return free_count_; }

 private:
  BufferPool(std::byte* memory, size_t mapped_bytes, size_t stride, uint32_t count);

  std::byte* memory_;
  size_t mapped_bytes_;
  size_t stride_;
  std::vector<uint32_t> references_;
  std::vector<BufferId> free_;
  uint32_t free_count_;
};

}  // namespace gatun
