#include "host/fallback/gloo/module.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/fallback/arithmetic.h"
#include "host/fallback/gloo/transport.h"
#include "protocols/float_environment.h"

// What Gloo lacks: narrow floats are widened to f32 in stages, travel and are added so, and are rounded once. An average is
// a sum that is divided before that. Reduce-scatter is one reduce per rank, which moves no more than a ring would.

namespace gatun {
namespace {

constexpr size_t kStageElems = 1 << 20;

// Gloo's options take the element's size from a type.
template <typename F>
void with_width(size_t bytes, void* data, F&& f) {
  switch (bytes) {
    case 4: return f(static_cast<uint32_t*>(data));
    case 8: return f(static_cast<uint64_t*>(data));
    case 2: return f(static_cast<uint16_t*>(data));
    default: return f(static_cast<uint8_t*>(data));
  }
}

class GlooEngine : public Engine {
 public:
  explicit GlooEngine(BulkStreams* streams)
      : context_(std::make_shared<MeshContext>(streams)), rank_(streams->rank()), ranks_(streams->ranks()) {}

  const char* name() const override { return "gloo"; }

  Status run(const Contract& contract, const void* send, void* recv, TimeNs deadline) override {
    if (!broken_.ok()) return broken_;
    const FloatEnvironment environment;
    ++tag_;
    context_->transport().begin(deadline);
    try {
      start(contract, static_cast<const std::byte*>(send), static_cast<std::byte*>(recv));
      return context_->transport().streams().wait_all(deadline);
    } catch (const Failed&) {
      return context_->transport().status();
    } catch (const std::exception& thrown) {
      // What it had posted may be gone: nothing may move the streams again.
      return broken_ = Status(Code::kInternal, std::string("Gloo says: ") + thrown.what());
    }
  }

 private:
  void start(const Contract& contract, const std::byte* send, std::byte* recv) {
    arithmetic_ = &Arithmetic::of(contract.type, contract.op);
    elem_ = arithmetic_->elem_bytes;
    wide_ = arithmetic_->accumulator_bytes;
    average_ = contract.op == Op::kAvg;
    if (contract.count == 0 && contract.collective != Collective::kBarrier) return;
    const size_t count = contract.count, bytes = count * elem_;
    switch (contract.collective) {
      case Collective::kAllReduce: return all_reduce(send, recv, count);
      case Collective::kReduce: return reduce(contract.root, send, recv, count);
      case Collective::kReduceScatter:
        for (uint32_t owner = 0; owner < ranks_; ++owner) reduce(owner, send + owner * bytes, recv, count);
        return;
      case Collective::kAllGather: return all_gather(send, recv, bytes);
      case Collective::kBroadcast: return broadcast(contract.root, send, recv, bytes);
      case Collective::kBarrier: return barrier();
    }
  }

  auto reduction() const {
    return [combine = arithmetic_->combine](void* out, const void* a, const void* b, size_t elems) {
      combine(out, a, b, elems);
    };
  }

  void all_reduce(const std::byte* send, std::byte* recv, size_t count) {
    if (wide_ == elem_) {
      ring(send, recv, count);
      if (average_) arithmetic_->store(recv, recv, count, ranks_);
      return;
    }
    stage_.resize(std::min(count, kStageElems) * wide_);
    for (size_t at = 0; at < count; at += kStageElems) {
      const size_t elems = std::min(kStageElems, count - at);
      arithmetic_->load(stage_.data(), send + at * elem_, elems);
      ring(stage_.data(), stage_.data(), elems);
      arithmetic_->store(recv + at * elem_, stage_.data(), elems, ranks_);
    }
  }

  void ring(const std::byte* send, std::byte* recv, size_t elems) {
    if (ranks_ == 1) {
      if (send != recv) std::memmove(recv, send, elems * wide_);
      return;
    }
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    with_width(wide_, recv, [&](auto* data) {
      using T = std::remove_pointer_t<decltype(data)>;
      if (send != recv) options.setInput(reinterpret_cast<T*>(const_cast<std::byte*>(send)), elems);
      options.setOutput(data, elems);
    });
    options.setReduceFunction(reduction());
    options.setTag(tag_);
    gloo::allreduce(options);
  }

  // In stages, because Gloo needs room for the sum on ranks that do not get it.
  void reduce(uint32_t root, const std::byte* send, std::byte* recv, size_t count) {
    const size_t stage_elems = std::min(count, kStageElems);
    sum_.resize(stage_elems * wide_);
    if (wide_ != elem_) stage_.resize(stage_elems * wide_);
    for (size_t at = 0; at < count; at += kStageElems) {
      const size_t elems = std::min(kStageElems, count - at);
      const std::byte* in = send + at * elem_;
      if (wide_ != elem_) {
        arithmetic_->load(stage_.data(), in, elems);
        in = stage_.data();
      }
      if (ranks_ == 1) {
        std::memcpy(sum_.data(), in, elems * wide_);
      } else {
        reduce_stage(root, in, elems);
      }
      if (rank_ == root) arithmetic_->store(recv + at * elem_, sum_.data(), elems, ranks_);
    }
  }

  void reduce_stage(uint32_t root, const std::byte* in, size_t elems) {
    gloo::ReduceOptions options(context_);
    with_width(wide_, sum_.data(), [&](auto* data) {
      using T = std::remove_pointer_t<decltype(data)>;
      options.setInput(reinterpret_cast<T*>(const_cast<std::byte*>(in)), elems);
      options.setOutput(data, elems);
    });
    options.setRoot(static_cast<int>(root));
    options.setReduceFunction(reduction());
    options.setTag(tag_);
    gloo::reduce(options);
  }

  void all_gather(const std::byte* send, std::byte* recv, size_t bytes) {
    std::byte* own = recv + rank_ * bytes;
    if (own != send) std::memmove(own, send, bytes);
    if (ranks_ == 1) return;
    gloo::AllgatherOptions options(context_);
    options.setOutput(reinterpret_cast<uint8_t*>(recv), bytes * ranks_);
    options.setTag(tag_);
    gloo::allgather(options);
  }

  void broadcast(uint32_t root, const std::byte* send, std::byte* recv, size_t bytes) {
    if (rank_ == root && send != recv) std::memmove(recv, send, bytes);
    if (ranks_ == 1) return;
    gloo::BroadcastOptions options(context_);
    options.setOutput(reinterpret_cast<uint8_t*>(recv), bytes);
    options.setRoot(static_cast<int>(root));
    options.setTag(tag_);
    gloo::broadcast(options);
  }

  void barrier() {
    if (ranks_ == 1) return;
    gloo::BarrierOptions options(context_);
    options.setTag(tag_);
    gloo::barrier(options);
  }

  const std::shared_ptr<MeshContext> context_;
  const uint32_t rank_, ranks_;
  uint32_t tag_ = 0;  // of the collective, so that labels differ
  Status broken_;

  // Of the collective that runs.
  const Arithmetic* arithmetic_ = nullptr;
  size_t elem_ = 1, wide_ = 1;
  bool average_ = false;
  std::vector<std::byte> stage_, sum_;
};

Engine* make(BulkStreams* streams, Status* why) {
  try {
    return new GlooEngine(streams);
  } catch (const std::exception& thrown) {
    *why = Status(Code::kUnsupported, std::string("Gloo does not start: ") + thrown.what());
    return nullptr;
  }
}

constexpr GlooModule kModule = {kGlooModuleVersion, make};

}  // namespace
}  // namespace gatun

extern "C" __attribute__((visibility("default"))) const void* gatun_gloo_module() {
  return &gatun::kModule;
}
