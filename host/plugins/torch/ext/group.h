// Group: a PyTorch process group whose reductions are summed by a Gatun switch.
//
// all_reduce, reduce, reduce_scatter, all_gather, broadcast and barrier go through one communicator of the C API. What the
// switch does not do (gather, scatter, all_to_all, send and receive, bitwise operators, sparse tensors) goes to an inner
// group: Gloo for tensors of the CPU, NCCL for tensors of a GPU. Which way an operation goes depends on its kind, operator,
// element type and device alone, so all ranks decide alike. A tensor of a GPU is reduced through a buffer in host memory.
//
// Any thread may call; operations are ordered by their call. Errors are C++ exceptions, which PyTorch turns into Python's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/plugins/torch/ext/compat.h"
#include "host/plugins/torch/ext/layout.h"
#include "host/plugins/torch/ext/work.h"

namespace gatun_torch {

class Group final : public Base {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Milliseconds = std::chrono::milliseconds;

  struct Config {
    std::string name;  // as PyTorch calls the group, for error sentences
    Milliseconds timeout;
    BasePtr inner;                               // for tensors of the CPU; may be null
    std::function<BasePtr()> make_device_inner;  // for others; called once, when first needed
  };

  // Takes the communicator over; leave_all() knows the group.
  static c10::intrusive_ptr<Group> make(gatun_comm_t comm, int rank, int size, Config config);
  Group(gatun_comm_t comm, int rank, int size, Config config);

  const std::string getBackendName() const override { return "gatun"; }
  uint64_t getSequenceNumberForGroup() override { return tracker_->sequence(); }
  void setSequenceNumberForGroup() override {}
  void setTimeout(Milliseconds timeout) { timeout_ms_ = timeout.count(); }
  gatun_stats_t stats() const;

  // Completes what is pending, for a bounded time, and leaves; then all calls fail. Idempotent.
  void shutdown() { leave(); }
  void release_resources() override { leave(); }  // the last reference is gone; the destructor waits for weak ones too
  void leave();
  // Fails everything pending on all ranks. Any thread.
  void abort();

  // Through the switch.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
#if GATUN_TORCH_AT_LEAST(2, 1)
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
#endif

  // Through the inner group.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts);
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

#if GATUN_TORCH_AT_LEAST(2, 0)
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
#endif

 private:
  static constexpr Milliseconds kGrace{1000};     // of what is pending at the end
  static constexpr Milliseconds kCallbacks{500};  // of futures that still run then

  // One flat run in and one out, and how the results get back into the tensors.
  struct Buffers {
    at::Tensor send, recv;
    std::function<void()> unpack;
  };
  Buffers in_place(const Tensors& tensors, at::ScalarType dtype) const;
  // recv_elements: of dtype, what the outputs hold together.
  Buffers between(const Tensors& inputs, const Tensors& outputs, at::ScalarType dtype, int64_t recv_elements) const;

  WorkPtr reduce_all(const Tensors& tensors, const Reduction& how, c10d::OpType type, const char* title,
                     Milliseconds timeout);
  WorkPtr gather_all(const Tensors& outputs, const Tensors& inputs, c10d::OpType type, const char* title,
                     Milliseconds timeout);
  WorkPtr scatter_reduced(const Tensors& outputs, const Tensors& inputs, const Reduction& how, c10d::OpType type,
                          const char* title, Milliseconds timeout);
  WorkPtr submit(Collective collective, const Tracker::Start& start, bool after_all = false);

  std::optional<Reduction> reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  [[noreturn]] void refuse(const char* what, const std::string& why) const;
  Base& inner(const char* what, at::TensorList tensors);
  WorkPtr foreign(WorkPtr work);
  WorkPtr collected(WorkPtr work);
  void leave_inner(Milliseconds left);

  gatun_comm_t comm_;
  const std::string name_;
  std::atomic<int64_t> timeout_ms_;
  const std::shared_ptr<Tracker> tracker_;
  std::mutex inner_mutex_;
  BasePtr inner_, device_inner_;
  std::function<BasePtr()> make_device_inner_;

  std::mutex leave_mutex_;
  mutable std::mutex comm_mutex_;  // comm_ becomes null once

  std::mutex coalescing_mutex_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

// Of all groups that still are members, side by side; for the end of the process.
void leave_all();

}  // namespace gatun_torch
