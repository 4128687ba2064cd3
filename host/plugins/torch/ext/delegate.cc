// The calls of Group that an inner group serves, and what the two ways share.
#include <utility>

#include "host/plugins/torch/ext/group.h"

namespace gatun_torch {

WorkPtr Group::submit(Collective collective, const Tracker::Start& start, bool after_all) {
  WorkPtr work = tracker_->submit(std::move(collective), Milliseconds(timeout_ms_), after_all, start);
  return collected(std::move(work));
}

void Group::refuse(const char* title, const std::string& why) const {
  tracker_->fail(title, GATUN_INVALID_ARGUMENT, why);
}

Base& Group::inner(const char* what, at::TensorList tensors) {
  tracker_->check_open(what);
  std::lock_guard<std::mutex> lock(inner_mutex_);
  const bool cpu = tensors.empty() || tensors[0].device().is_cpu();
  if (!cpu && !device_inner_ && make_device_inner_) {
    device_inner_ = make_device_inner_();
  }
  const auto& chosen = cpu ? inner_ : device_inner_;
  if (!chosen) {
    tracker_->fail(what, GATUN_UNSUPPORTED,
                   std::string("Gatun does not do this for these tensors, and there is no ") + (cpu ? "Gloo" : "NCCL") +
                       " in this PyTorch to do it instead");
  }
  return *chosen;
}

// Barriers wait for it.
WorkPtr Group::foreign(WorkPtr work) {
  if (work) {
    tracker_->note_foreign(work);
  }
  return collected(std::move(work));
}

WorkPtr Group::collected(WorkPtr work) {
  std::lock_guard<std::mutex> lock(coalescing_mutex_);
  if (coalescing_ && work) {
    coalesced_.push_back(work);
  }
  return work;
}

WorkPtr Group::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return foreign(inner("all_reduce of sparse tensors", tensors).allreduce(tensors, opts));
}

WorkPtr Group::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return foreign(inner("all_gather_coalesced", inputs).allgather_coalesced(outputs, inputs, opts));
}

WorkPtr Group::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  return foreign(inner("gather", inputs).gather(outputs, inputs, opts));
}

WorkPtr Group::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  return foreign(inner("scatter", outputs).scatter(outputs, inputs, opts));
}

WorkPtr Group::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                             std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) {
  return foreign(inner("all_to_all_single", {input}).alltoall_base(output, input, output_sizes, input_sizes, opts));
}

WorkPtr Group::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return foreign(inner("all_to_all", inputs).alltoall(outputs, inputs, opts));
}

void Group::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  inner("monitored_barrier", {}).monitoredBarrier(opts, wait_all_ranks);
}

// A barrier does not wait for messages between two ranks: the other side may send only after it.
WorkPtr Group::send(Tensors& tensors, int to, int tag) {
  return collected(inner("send", tensors).send(tensors, to, tag));
}

WorkPtr Group::recv(Tensors& tensors, int from, int tag) {
  return collected(inner("recv", tensors).recv(tensors, from, tag));
}

WorkPtr Group::recvAnysource(Tensors& tensors, int tag) {
  return collected(inner("recv", tensors).recvAnysource(tensors, tag));
}

#if GATUN_TORCH_AT_LEAST(2, 0)
void Group::startCoalescing() {
  std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr Group::endCoalescing() {
  std::lock_guard<std::mutex> lock(coalescing_mutex_);
  coalescing_ = false;
  return c10::make_intrusive<Bundle>(getRank(), std::exchange(coalesced_, {}));
}
#endif

}  // namespace gatun_torch
