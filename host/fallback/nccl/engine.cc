// The NCCL engine. What NCCL computes is NCCL's: another order than the switch's, rounded at each step. Where that would be
// another answer, or a library or GPU that is old does not have it, the arrays go through the host's memory and its engine.
#include "host/fallback/engine.h"

#include <vector>

#include "host/fallback/nccl/communicator.h"

namespace gatun {
namespace {

// All ranks decide this alike, since it depends on the contract only.
bool by_host(const Contract& contract) {
  if (contract.collective == Collective::kAllGather || contract.collective == Collective::kBroadcast) return false;
  switch (contract.type) {
    case Type::kE4M3:
    case Type::kE5M2: return true;  // NCCL 2.24 on a GPU of compute capability 9.0 or later has them
    case Type::kF16:
    case Type::kBF16:
    case Type::kF32:
    case Type::kF64: return contract.op == Op::kMin || contract.op == Op::kMax;  // NCCL's lose a NaN
    case Type::kI8:
    case Type::kI32:
    case Type::kI64: return contract.op == Op::kAvg;  // divided as unsigned by some versions
    case Type::kU8:
    case Type::kU32:
    case Type::kU64: return false;
  }
  return true;
}

CudaAddress address_of(const void* memory) {
  return reinterpret_cast<CudaAddress>(memory);
}

class NcclEngine : public Engine {
 public:
  NcclEngine(BulkStreams* streams, std::unique_ptr<Engine> host, NcclLibrary nccl, CudaDriver cuda)
      : streams_(*streams),
        host_(std::move(host)),
        nccl_(std::move(nccl)),
        cuda_(cuda),
        communicator_(nccl_, cuda_, streams) {}

  // A GPU that NCCL does not come back from is left alone: giving back its stream and context could hang as well.
  ~NcclEngine() override {
    const bool ended = communicator_.end() && !lost_;
    if (context_ == nullptr || !ended) return;
    {
      const Current current(cuda_, context_);
      if (stream_ != nullptr) cuda_.destroy_stream(stream_);
    }
    cuda_.release_context(device_);
  }

  const char* name() const override { return "nccl"; }

  Status run(const Contract& contract, const void* send, void* recv, TimeNs deadline) override {
    if (!broken_.ok()) return broken_;
    if (contract.collective == Collective::kBarrier) return host_->run(contract, nullptr, nullptr, deadline);
    if (contract.count == 0) return {};
    const size_t elem = elem_bytes(contract.type);
    const bool root = contract.root == streams_.rank();
    const bool reads = contract.collective != Collective::kBroadcast || root;
    const bool writes = contract.collective != Collective::kReduce || root;
    if (Status status = reads ? use("send", send, elem) : Status(); !status.ok()) return status;
    if (Status status = writes ? use("recv", recv, elem) : Status(); !status.ok()) return status;
    const Current current(cuda_, context_);
    Status status = by_host(contract) ? stage(contract, send, writes ? recv : nullptr, deadline)
                                      : collective(contract, send, recv, deadline);
    if (status.ok()) return status;
    broken_ = status;
    if (communicator_.drop()) return broken_;
    lost_ = true;
    return broken_ = Status(status.code(), std::string(status.message()) + "; ncclCommAbort does not return either");
  }

 private:
  // The context of the engine's GPU, current in this thread while the object lives.
  class Current {
   public:
    Current(const CudaDriver& cuda, CudaContext context) : cuda_(cuda) { cuda_.push_context(context); }
    ~Current() {
      CudaContext popped = nullptr;
      cuda_.pop_context(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& cuda_;
  };

  // The memory must be of one GPU, always the same; the first decides. An error here costs nothing but the operation.
  Status use(const char* what, const void* memory, size_t elem) {
    if (address_of(memory) % elem != 0) {  // a GPU would fault, and the process could not use it any more
      return {Code::kInvalidArgument, std::string(what) + " is not aligned to its elements, which are of " +
                                          std::to_string(elem) + " bytes: begin it at a multiple of that"};
    }
    unsigned kind = CudaDriver::kMemoryHost;
    int device = 0;
    int result = cuda_.pointer_attribute(&kind, CudaDriver::kMemoryType, address_of(memory));
    if (result == CudaDriver::kInvalidValue || (result == CudaDriver::kSuccess && kind == CudaDriver::kMemoryHost)) {
      return {Code::kInvalidArgument, std::string(what) +
                                          " is memory of the host, and the NCCL engine takes memory of a GPU: "
                                          "pass memory of a GPU, or use the Gloo or the exact engine"};
    }
    if (result == CudaDriver::kSuccess) {
      result = cuda_.pointer_attribute(&device, CudaDriver::kDeviceOrdinal, address_of(memory));
    }
    if (result != CudaDriver::kSuccess) return cuda_.error("cuPointerGetAttribute", result);
    if (context_ == nullptr) return adopt(device);
    if (device == device_) return {};
    return {Code::kInvalidArgument, std::string(what) + " is memory of GPU " + std::to_string(device) +
                                        ", and this communicator uses GPU " + std::to_string(device_) +
                                        ": use one GPU, or another communicator for the other"};
  }

  Status adopt(int device) {
    CudaContext context = nullptr;
    int result = cuda_.retain_context(&context, device);
    if (result != CudaDriver::kSuccess) return cuda_.error("cuDevicePrimaryCtxRetain", result);
    {
      const Current current(cuda_, context);
      result = cuda_.create_stream(&stream_, CudaDriver::kNonBlocking);
    }
    if (result != CudaDriver::kSuccess) {
      cuda_.release_context(device);
      return cuda_.error("cuStreamCreate", result);
    }
    device_ = device;
    context_ = context;
    return {};
  }

  Status collective(const Contract& contract, const void* send, void* recv, TimeNs deadline) {
    if (!communicator_.created()) {
      if (Status status = communicator_.create(deadline); !status.ok()) return status;
    }
    const NcclComm comm = communicator_.handle();
    const auto type = static_cast<int>(contract.type), op = static_cast<int>(contract.op);
    const auto root = static_cast<int>(contract.root), bytes_type = static_cast<int>(Type::kU8);
    const size_t count = contract.count, bytes = count * elem_bytes(contract.type);
    const auto finish = [&](const char* call, NcclResult begun) {
      return communicator_.finish(call, begun, stream_, deadline);
    };
    // In place, our one array begins where the other does; NCCL's is the rank's part of it.
    std::byte* part = static_cast<std::byte*>(recv) + streams_.rank() * bytes;
    const bool moves = send == recv && part != recv;
    switch (contract.collective) {
      case Collective::kAllReduce:
        return finish("ncclAllReduce", nccl_.all_reduce(send, recv, count, type, op, comm, stream_));
      case Collective::kReduce: return finish("ncclReduce", nccl_.reduce(send, recv, count, type, op, root, comm, stream_));
      case Collective::kReduceScatter: {
        void* result = moves ? part : recv;
        Status status = finish("ncclReduceScatter", nccl_.reduce_scatter(send, result, count, type, op, comm, stream_));
        return status.ok() && moves ? move(recv, part, bytes, deadline) : status;
      }
      case Collective::kAllGather: {
        Status status = moves ? move(part, send, bytes, deadline) : Status();
        if (!status.ok()) return status;
        return finish("ncclAllGather", nccl_.all_gather(moves ? part : send, recv, bytes, bytes_type, comm, stream_));
      }
      case Collective::kBroadcast:
        return finish("ncclBroadcast", nccl_.broadcast(send, recv, bytes, bytes_type, root, comm, stream_));
      case Collective::kBarrier: break;  // has no memory
    }
    return {};
  }

  Status move(void* to, const void* from, size_t bytes, TimeNs deadline) {
    const int begun = cuda_.copy_on_device(address_of(to), address_of(from), bytes, stream_);
    return copied("cuMemcpyDtoDAsync", begun, deadline);
  }

  // A reduction on copies in the host's memory, of which the driver keeps nothing when a call returns, since they are
  // pageable. recv is null where nothing is received.
  Status stage(const Contract& contract, const void* send, void* recv, TimeNs deadline) {
    const size_t bytes = contract.count * elem_bytes(contract.type);
    staged_send_.resize(contract.collective == Collective::kReduceScatter ? bytes * streams_.ranks() : bytes);
    staged_recv_.resize(bytes);
    int result = cuda_.copy_to_host(staged_send_.data(), address_of(send), staged_send_.size(), stream_);
    if (Status status = copied("cuMemcpyDtoHAsync", result, deadline); !status.ok()) return status;
    Status status = host_->run(contract, staged_send_.data(), staged_recv_.data(), deadline);
    if (!status.ok() || recv == nullptr) return status;
    result = cuda_.copy_to_device(address_of(recv), staged_recv_.data(), bytes, stream_);
    return copied("cuMemcpyHtoDAsync", result, deadline);
  }

  Status copied(const char* call, int begun, TimeNs deadline) {
    if (begun != CudaDriver::kSuccess) return cuda_.error(call, begun);
    const std::string late = std::string(call) + " has not completed before the deadline: the GPU hangs or is very busy";
    return wait_until(streams_, deadline, late, [&]() -> Result<bool> {
      const int result = cuda_.query_stream(stream_);
      if (result != CudaDriver::kSuccess && result != CudaDriver::kNotReady) return cuda_.error(call, result);
      return result == CudaDriver::kSuccess;
    });
  }

  BulkStreams& streams_;
  const std::unique_ptr<Engine> host_;
  const NcclLibrary nccl_;
  const CudaDriver cuda_;
  NcclCommunicator communicator_;
  int device_ = 0;
  CudaContext context_ = nullptr;  // of the device, once there was an operation
  CudaStream stream_ = nullptr;
  std::vector<std::byte> staged_send_, staged_recv_;
  Status broken_;
  bool lost_ = false;  // NCCL has not come back
};

}  // namespace

Result<std::unique_ptr<Engine>> make_nccl_engine(BulkStreams* streams, std::unique_ptr<Engine> host,
                                                 const NcclFiles& files) {
  // The driver first: it is small, and without it NCCL is of no use.
  Result<CudaDriver> cuda = load_cuda(files.cuda);
  if (!cuda.ok()) return cuda.status();
  Result<NcclLibrary> nccl = load_nccl(files.nccl);
  if (!nccl.ok()) return nccl.status();
  std::unique_ptr<Engine> engine =
      std::make_unique<NcclEngine>(streams, std::move(host), std::move(nccl.value()), std::move(cuda.value()));
  return engine;
}

}  // namespace gatun
