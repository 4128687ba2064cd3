#include "host/plugins/torch/ext/group.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace gatun_torch {
namespace {

using Clock = Deadline::Clock;
using Milliseconds = std::chrono::milliseconds;

// Lets other Python threads run while this one waits; callbacks that complete what is waited for may need them.
class WithoutGil {
 public:
  WithoutGil() : saved_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (saved_) {
      PyEval_RestoreThread(saved_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const saved_;
};

// Never destroyed: groups may outlive static objects.
struct Registry {
  std::mutex mutex;
  std::vector<c10::weak_intrusive_ptr<Group>> groups;
  std::vector<BasePtr> unfinished;  // inner groups
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

// Groups that end one directly after another, as destroy_process_group ends them, share one grace: all had it since the
// first of them, and their end takes no longer than if they ended side by side.
class Grace {
 public:
  Deadline begin(Milliseconds grace) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_++ == 0 && Clock::now() - last_ended_ > kApart) {
      until_ = Clock::now() + grace;
    }
    return Deadline(until_);
  }
  void end() {
    std::lock_guard<std::mutex> lock(mutex_);
    --ending_;
    last_ended_ = Clock::now();
  }

 private:
  static constexpr Milliseconds kApart{50};  // PyTorch does nothing else between two groups
  std::mutex mutex_;
  int ending_ = 0;
  Clock::time_point until_, last_ended_;
};
Grace& shared_grace() {
  static auto* const grace = new Grace;
  return *grace;
}

bool on_cpu(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

bool all_on_cpu(at::TensorList tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), on_cpu);
}

bool same_type(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& each) { return each.scalar_type() == tensors.front().scalar_type(); });
}

size_t bytes_of(const at::Tensor& buffer) {
  return static_cast<size_t>(buffer.numel()) * buffer.element_size();
}

}  // namespace

Group::Group(gatun_comm_t comm, int rank, int size, Config config)
    : Base(rank, size),
      comm_(comm),
      name_(config.name),
      timeout_ms_(config.timeout.count()),
      tracker_(std::make_shared<Tracker>(comm, rank, size, config.name)),
      inner_(std::move(config.inner)),
      make_device_inner_(std::move(config.make_device_inner)) {}

c10::intrusive_ptr<Group> Group::make(gatun_comm_t comm, int rank, int size, Config config) {
  auto group = c10::make_intrusive<Group>(comm, rank, size, std::move(config));
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& groups = registry().groups;
  groups.erase(std::remove_if(groups.begin(), groups.end(), [](const auto& old) { return old.expired(); }), groups.end());
  groups.emplace_back(group);
  return group;
}

gatun_stats_t Group::stats() const {
  gatun_stats_t stats{};
  stats.size = sizeof(stats);
  std::lock_guard<std::mutex> lock(comm_mutex_);
  if (!comm_ || gatun_comm_stats(comm_, &stats) < 0) {
    refuse("stats", "the group was destroyed");
  }
  return stats;
}

void Group::leave() {
  const WithoutGil free;
  std::lock_guard<std::mutex> once(leave_mutex_);
  if (!comm_) {
    return;
  }
  tracker_->close("the group was destroyed");
  const Deadline grace = shared_grace().begin(kGrace);
  tracker_->complete_without_threads();
  if (!tracker_->wait_idle(grace.timeout())) {
    gatun_comm_abort(comm_);
    tracker_->complete_without_threads();
    tracker_->wait_idle(kGrace);
  }
  {
    std::lock_guard<std::mutex> lock(comm_mutex_);
    gatun_comm_destroy(std::exchange(comm_, nullptr));
  }
  tracker_->stop(std::max(grace.timeout(), kCallbacks));
  leave_inner(grace.timeout());
  shared_grace().end();
}

// Their destructors join threads that may want the interpreter: here, while it is free. Gloo's waits for what is pending,
// and nothing can end that: such a group is left to the end of the process.
void Group::leave_inner(Milliseconds left) {
  // No signal handlers: what they raise would leave the group half left, and end the process in a destructor.
  const bool idle = tracker_->wait_foreign(left, [] {});
  BasePtr inner, device_inner;
  {
    std::lock_guard<std::mutex> lock(inner_mutex_);
    inner = std::move(inner_);
    device_inner = std::move(device_inner_);
  }
  for (auto* each : {&inner, &device_inner}) {
    if (*each) {
      shutdown_of(**each);
    }
  }
  if (!idle) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().unfinished.push_back(std::move(inner));
    registry().unfinished.push_back(std::move(device_inner));
  }
}

void Group::abort() {
  const WithoutGil free;
  tracker_->close("the group was aborted");
  {
    std::lock_guard<std::mutex> lock(comm_mutex_);
    if (comm_) {
      gatun_comm_abort(comm_);
    }
  }
  std::lock_guard<std::mutex> lock(inner_mutex_);
  for (auto* each : {&inner_, &device_inner_}) {
    if (*each) {
      abort_of(**each);
    }
  }
}

void leave_all() {
  const WithoutGil free;
  std::vector<c10::intrusive_ptr<Group>> groups;
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    for (const auto& each : registry().groups) {
      if (auto group = each.lock()) {
        groups.push_back(std::move(group));
      }
    }
  }
  std::vector<std::thread> side_by_side;
  for (const auto& group : groups) {
    try {
      side_by_side.emplace_back([&group] { group->leave(); });
    } catch (const std::system_error&) {  // no more threads
      group->leave();
    }
  }
  for (auto& thread : side_by_side) {
    thread.join();
  }
}

std::optional<Reduction> Group::reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  if (tensor.layout() != at::kStrided) {
    return std::nullopt;
  }
  return reduction_of(tensor.scalar_type(), op);
}

Group::Buffers Group::in_place(const Tensors& tensors, at::ScalarType dtype) const {
  if (tensors.size() == 1 && is_flat(tensors[0], dtype)) {
    return {tensors[0], tensors[0], nullptr};
  }
  auto buffer = pack(tensors, dtype);
  return {buffer, buffer, [buffer, tensors] { unpack(buffer, tensors); }};
}

Group::Buffers Group::between(const Tensors& inputs, const Tensors& outputs, at::ScalarType dtype,
                              int64_t recv_elements) const {
  const auto send = inputs.size() == 1 && is_flat(inputs[0], dtype) ? inputs[0] : pack(inputs, dtype);
  if (outputs.size() == 1 && is_flat(outputs[0], dtype)) {
    return {send, outputs[0], nullptr};
  }
  const auto recv = make_buffer(recv_elements, dtype, outputs[0]);
  return {send, recv, [recv, outputs] { unpack(recv, outputs); }};
}

WorkPtr Group::reduce_all(const Tensors& tensors, const Reduction& how, c10d::OpType type, const char* title,
                          Milliseconds timeout) {
  const at::NoGradGuard no_grad;
  auto buffers = in_place(tensors, how.element.dtype);
  const auto count = bytes_of(buffers.send) / c10::elementSize(how.element.dtype);
  void* const data = buffers.send.data_ptr();
  return submit(
      {type, title, tensors, tensors, buffers.send, std::move(buffers.unpack), fingerprint(type, tensors), timeout},
      [=, this](const gatun_call_t* call, gatun_request_t* request) {
        return gatun_iallreduce(data, data, count, how.element.type, how.op, comm_, call, request);
      });
}

WorkPtr Group::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto how = tensors.size() == 1 ? reduction(tensors[0], opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("all_reduce", tensors).allreduce(tensors, opts));
  }
  return reduce_all(tensors, *how, c10d::OpType::ALLREDUCE, "gatun:all_reduce", opts.timeout);
}

WorkPtr Group::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  const auto how = !tensors.empty() && same_type(tensors) ? reduction(tensors[0], opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("all_reduce_coalesced", tensors).allreduce_coalesced(tensors, opts));
  }
  return reduce_all(tensors, *how, c10d::OpType::ALLREDUCE_COALESCED, "gatun:all_reduce_coalesced", opts.timeout);
}

WorkPtr Group::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto how = tensors.size() == 1 && on_cpu(tensors[0]) ? reduction(tensors[0], opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("reduce", tensors).reduce(tensors, opts));
  }
  const at::NoGradGuard no_grad;
  auto buffers = in_place(tensors, how->element.dtype);
  const bool root = opts.rootRank == getRank();
  const auto count = bytes_of(buffers.send) / c10::elementSize(how->element.dtype);
  void* const data = buffers.send.data_ptr();
  return submit({c10d::OpType::REDUCE, "gatun:reduce", tensors, tensors, buffers.send,
                 root ? std::move(buffers.unpack) : nullptr, fingerprint(c10d::OpType::REDUCE, tensors), opts.timeout},
                [=, this](const gatun_call_t* call, gatun_request_t* request) {
                  return gatun_ireduce(data, root ? data : nullptr, count, how->element.type, how->op,
                                       static_cast<int>(opts.rootRank), comm_, call, request);
                });
}

WorkPtr Group::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  if (tensors.size() != 1 || !on_cpu(tensors[0])) {
    return foreign(inner("broadcast", tensors).broadcast(tensors, opts));
  }
  const at::NoGradGuard no_grad;
  auto buffers = in_place(tensors, tensors[0].scalar_type());
  const auto bytes = bytes_of(buffers.send);
  void* const data = buffers.send.data_ptr();
  const bool root = opts.rootRank == getRank();
  return submit({c10d::OpType::BROADCAST, "gatun:broadcast", tensors, tensors, buffers.send,
                 root ? nullptr : std::move(buffers.unpack), fingerprint(c10d::OpType::BROADCAST, tensors), opts.timeout},
                [=, this](const gatun_call_t* call, gatun_request_t* request) {
                  return gatun_ibroadcast(data, data, bytes, GATUN_U8, static_cast<int>(opts.rootRank), comm_, call,
                                          request);
                });
}

// outputs: what each rank sent, slice by slice, rank after rank; or one flat tensor.
WorkPtr Group::gather_all(const Tensors& outputs, const Tensors& inputs, c10d::OpType type, const char* title,
                          Milliseconds timeout) {
  const auto dtype = inputs[0].scalar_type();
  if (!same_type(inputs) || !same_type(outputs) || outputs[0].scalar_type() != dtype) {
    refuse(title, "the tensors must have one element type");
  }
  if (elements_of(outputs) != elements_of(inputs) * getSize()) {
    refuse(title, "the outputs have " + std::to_string(elements_of(outputs)) + " elements; they must have " +
                      std::to_string(getSize()) + " times the " + std::to_string(elements_of(inputs)) + " of the input");
  }
  auto buffers = between(inputs, outputs, dtype, elements_of(outputs));
  const auto send = buffers.send, recv = buffers.recv;
  auto kept = inputs;
  kept.push_back(send);
  return submit({type, title, std::move(kept), outputs, recv, std::move(buffers.unpack), fingerprint(type, inputs), timeout},
                [=, this](const gatun_call_t* call, gatun_request_t* request) {
                  return gatun_iallgather(send.data_ptr(), recv.data_ptr(), bytes_of(send), GATUN_U8, comm_, call, request);
                });
}

WorkPtr Group::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  if (inputs.size() != 1 || outputs.size() != 1 || !all_on_cpu(inputs) || !all_on_cpu(outputs[0])) {
    return foreign(inner("all_gather", inputs).allgather(outputs, inputs, opts));
  }
  const at::NoGradGuard no_grad;
  const auto fits = [&](const at::Tensor& each) { return each.numel() == inputs[0].numel(); };
  if (static_cast<int>(outputs[0].size()) != getSize() || !std::all_of(outputs[0].begin(), outputs[0].end(), fits)) {
    refuse("gatun:all_gather", "there must be one output for each rank, each as long as the input");
  }
  return gather_all(outputs[0], inputs, c10d::OpType::ALLGATHER, "gatun:all_gather", opts.timeout);
}

WorkPtr Group::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  if (!on_cpu(output) || !on_cpu(input)) {
    return foreign(inner("all_gather_into_tensor", {input})._allgather_base(output, input, opts));
  }
  const at::NoGradGuard no_grad;
  return gather_all({output}, {input}, c10d::OpType::_ALLGATHER_BASE, "gatun:all_gather_into_tensor", opts.timeout);
}

WorkPtr Group::barrier(const c10d::BarrierOptions& opts) {
  tracker_->wait_foreign(Milliseconds(timeout_ms_), run_signal_handlers);
  return submit(
      {c10d::OpType::BARRIER, "gatun:barrier", {}, {}, {}, nullptr, 0, opts.timeout},
      [this](const gatun_call_t* call, gatun_request_t* request) { return gatun_ibarrier(comm_, call, request); }, true);
}

// inputs: what each rank is to get, slice by slice, rank after rank; or one flat tensor.
WorkPtr Group::scatter_reduced(const Tensors& outputs, const Tensors& inputs, const Reduction& how, c10d::OpType type,
                               const char* title, Milliseconds timeout) {
  if (!same_type(outputs) || !same_type(inputs) || outputs[0].scalar_type() != inputs[0].scalar_type()) {
    refuse(title, "the tensors must have one element type");
  }
  if (elements_of(inputs) != elements_of(outputs) * getSize()) {
    refuse(title, "the inputs have " + std::to_string(elements_of(inputs)) + " elements; they must have " +
                      std::to_string(getSize()) + " times the " + std::to_string(elements_of(outputs)) + " of the output");
  }
  const auto dtype = how.element.dtype;
  const auto elements = elements_of(outputs) * how.element.per_tensor_element;
  auto buffers = between(inputs, outputs, dtype, elements);
  const auto send = buffers.send, recv = buffers.recv;
  auto kept = inputs;
  kept.push_back(send);
  return submit(
      {type, title, std::move(kept), outputs, recv, std::move(buffers.unpack), fingerprint(type, outputs), timeout},
      [=, this](const gatun_call_t* call, gatun_request_t* request) {
        return gatun_ireduce_scatter(send.data_ptr(), recv.data_ptr(), static_cast<size_t>(elements), how.element.type,
                                     how.op, comm_, call, request);
      });
}

WorkPtr Group::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  const bool one = outputs.size() == 1 && inputs.size() == 1 && all_on_cpu(outputs) && all_on_cpu(inputs[0]);
  const auto how = one ? reduction(outputs[0], opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("reduce_scatter", outputs).reduce_scatter(outputs, inputs, opts));
  }
  const at::NoGradGuard no_grad;
  const auto fits = [&](const at::Tensor& each) { return each.numel() == outputs[0].numel(); };
  if (static_cast<int>(inputs[0].size()) != getSize() || !std::all_of(inputs[0].begin(), inputs[0].end(), fits)) {
    refuse("gatun:reduce_scatter", "there must be one input for each rank, each as long as the output");
  }
  return scatter_reduced(outputs, inputs[0], *how, c10d::OpType::REDUCE_SCATTER, "gatun:reduce_scatter", opts.timeout);
}

WorkPtr Group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  const auto how = on_cpu(output) && on_cpu(input) ? reduction(output, opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("reduce_scatter_tensor", {output})._reduce_scatter_base(output, input, opts));
  }
  const at::NoGradGuard no_grad;
  return scatter_reduced({output}, {input}, *how, c10d::OpType::_REDUCE_SCATTER_BASE, "gatun:reduce_scatter_tensor",
                         opts.timeout);
}

#if GATUN_TORCH_AT_LEAST(2, 1)
namespace {

// The slices that the ranks own of tensors that are [ranks x mine]: rank after rank, each rank's in the order of the
// tensors.
std::vector<at::Tensor> slices(at::TensorList whole, int ranks) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& tensor : whole) {
      const auto mine = tensor.numel() / ranks;
      all.push_back(tensor.reshape({-1}).narrow(0, rank * mine, mine));
    }
  }
  return all;
}

}  // namespace

WorkPtr Group::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  if (!all_on_cpu(outputs) || !all_on_cpu(inputs)) {
    return foreign(inner("all_gather_into_tensor", inputs).allgather_into_tensor_coalesced(outputs, inputs, opts));
  }
  const at::NoGradGuard no_grad;
  for (const auto& output : outputs) {
    if (!output.is_contiguous()) {
      refuse("gatun:all_gather_into_tensor", "the outputs must be contiguous");
    }
  }
  return gather_all(slices(outputs, getSize()), inputs, c10d::OpType::COALESCED, "gatun:all_gather_into_tensor_coalesced",
                    opts.timeout);
}

WorkPtr Group::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const bool ours = all_on_cpu(outputs) && all_on_cpu(inputs);
  const auto how = ours ? reduction(outputs[0], opts.reduceOp) : std::nullopt;
  if (!how) {
    return foreign(inner("reduce_scatter_tensor", outputs).reduce_scatter_tensor_coalesced(outputs, inputs, opts));
  }
  const at::NoGradGuard no_grad;
  return scatter_reduced(outputs, slices(inputs, getSize()), *how, c10d::OpType::COALESCED,
                         "gatun:reduce_scatter_tensor_coalesced", opts.timeout);
}
#endif

}  // namespace gatun_torch
