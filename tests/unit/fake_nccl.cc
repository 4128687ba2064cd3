#include "fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "switch_model/kernels.h"

#define FAKE extern "C" __attribute__((visibility("default")))

using namespace gatun;

namespace {

enum Nccl { kOk = 0, kUnhandledCuda = 1, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };
enum Cuda { kInvalidValue = 1, kInvalidContext = 201, kNotReady = 600, kLaunchFailed = 719 };

FakeGpu gpu;
std::mutex mutex;  // of everything below
thread_local int current_contexts = 0;

bool fails(const char* function) {
  return std::string(gpu.failing.load()) == function;
}

enum class Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast };

struct Call {
  Kind kind{};
  const uint8_t* send = nullptr;
  uint8_t* recv = nullptr;
  size_t count = 0;
  int type = 0, op = 0, root = 0;
  bool same_contract(const Call& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op && root == other.root;
  }
};

struct Together {
  std::vector<Call> calls;
  int arrived = 0;
  bool done = false;
  bool withdrawn = false;  // a rank has aborted: its memory may be gone
};

struct World {
  int joined = 0;
  std::map<uint64_t, std::shared_ptr<Together>> collectives;  // by number
};

struct Stream {
  std::shared_ptr<Together> running;
  int polls = 0;
};

struct Comm {
  std::shared_ptr<World> world;
  int ranks = 0, rank = 0, polls = 0;
  bool ready = false, pending = false;
  uint64_t next = 0;
  Call call;  // that is pending
  Stream* stream = nullptr;
  std::shared_ptr<Together> running;
};

std::map<std::string, std::shared_ptr<World>>& worlds() {
  static std::map<std::string, std::shared_ptr<World>> all;
  return all;
}

// Owns them: the engine leaves a stream to a driver that hangs.
std::map<void*, std::unique_ptr<Stream>>& streams() {
  static std::map<void*, std::unique_ptr<Stream>> all;
  return all;
}

std::vector<uint8_t> reduce_all(const std::vector<Call>& calls, size_t elems) {
  std::vector<const void*> in;
  for (const Call& call : calls) in.push_back(call.send);
  const auto type = static_cast<Type>(calls[0].type);
  std::vector<uint8_t> out(elems * elem_bytes(type));
  ReduceArgs args{type,
                  static_cast<Op>(calls[0].op),
                  static_cast<int>(in.size()),
                  in.data(),
                  0,
                  out.data(),
                  false,
                  static_cast<uint32_t>(in.size()),
                  elems};
  reduce_scalar(args);
  return out;
}

// The last rank does it for all: inputs are read before outputs are written, since they may be the same.
void compute(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  const size_t ranks = calls.size(), bytes = first.count * elem_bytes(static_cast<Type>(first.type));
  std::vector<uint8_t> out;
  switch (first.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: out = reduce_all(calls, first.count); break;
    case Kind::kReduceScatter: out = reduce_all(calls, first.count * ranks); break;
    case Kind::kAllGather:
      for (const Call& call : calls) out.insert(out.end(), call.send, call.send + bytes);
      break;
    case Kind::kBroadcast:
      out.assign(calls[static_cast<size_t>(first.root)].send, calls[static_cast<size_t>(first.root)].send + bytes);
      break;
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (first.kind == Kind::kReduce && static_cast<int>(rank) != first.root) continue;
    const size_t from = first.kind == Kind::kReduceScatter ? rank * bytes : 0;
    std::memcpy(calls[rank].recv, out.data() + from, first.kind == Kind::kReduceScatter ? bytes : out.size());
  }
}

bool launch(Comm& comm) {
  std::shared_ptr<Together>& place = comm.world->collectives[comm.next++];
  if (!place) {
    place = std::make_shared<Together>();
    place->calls.resize(static_cast<size_t>(comm.ranks));
  }
  const std::shared_ptr<Together> collective = place;
  collective->calls[static_cast<size_t>(comm.rank)] = comm.call;
  comm.running = comm.stream->running = collective;
  comm.stream->polls = gpu.stream_polls;
  comm.pending = false;
  if (++collective->arrived < comm.ranks) return true;
  comm.world->collectives.erase(comm.next - 1);
  if (collective->withdrawn) return true;
  const auto same = [&](const Call& call) { return call.same_contract(comm.call); };
  if (!std::all_of(collective->calls.begin(), collective->calls.end(), same)) return false;
  compute(collective->calls);
  return collective->done = true;
}

// Where the arrays of a rank overlap, they must be as NCCL wants them in place.
bool may_share_memory(const Call& call, int ranks, int rank) {
  if (call.kind != Kind::kAllGather && call.kind != Kind::kReduceScatter) return true;
  const size_t bytes = call.count * elem_bytes(static_cast<Type>(call.type)), all = bytes * static_cast<size_t>(ranks);
  const bool gathers = call.kind == Kind::kAllGather;
  const auto* whole = gathers ? call.recv : call.send;
  const auto* part = gathers ? call.send : call.recv;
  return part >= whole + all || part + bytes <= whole || part == whole + static_cast<size_t>(rank) * bytes;
}

int begin(const char* function, const Call& call, void* handle, void* stream) {
  const std::lock_guard lock(mutex);
  auto* comm = static_cast<Comm*>(handle);
  if (fails(function)) return kInvalidUsage;
  if (current_contexts == 0) return kUnhandledCuda;
  if (!comm->ready || comm->pending) return kInvalidUsage;
  // An old library: it has no narrow floats.
  if (call.type > static_cast<int>(Type::kBF16)) return kInvalidArgument;
  if (!may_share_memory(call, comm->ranks, comm->rank)) return kInvalidArgument;
  ++gpu.collectives;
  comm->call = call;
  comm->stream = static_cast<Stream*>(stream);
  comm->pending = true;
  comm->polls = gpu.enqueue_polls;
  if (comm->polls != 0) return kInProgress;
  return launch(*comm) ? kOk : kInvalidUsage;
}

int finish_off(void* handle, std::atomic<int>* count) {
  if (gpu.end_hangs) {
    ++gpu.hanging;
    while (gpu.end_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --gpu.hanging;
  }
  const std::lock_guard lock(mutex);
  auto* comm = static_cast<Comm*>(handle);
  if (comm->running) comm->running->withdrawn = true;
  delete comm;
  ++*count;
  return kOk;
}

int copy(const char* function, void* to, const void* from, size_t bytes, void* stream) {
  const std::lock_guard lock(mutex);
  if (fails(function)) return kLaunchFailed;
  if (current_contexts == 0) return kInvalidContext;
  ++gpu.copies;
  std::memcpy(to, from, bytes);
  static_cast<Stream*>(stream)->polls = gpu.stream_polls;
  return kOk;
}

const uint8_t* bytes_of(const void* memory) {
  return static_cast<const uint8_t*>(memory);
}
uint8_t* bytes_of(void* memory) {
  return static_cast<uint8_t*>(memory);
}

}  // namespace

FAKE FakeGpu* fake_gpu() {
  return &gpu;
}

// --- NCCL ---

struct Id {
  char bytes[128];
};
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

FAKE int ncclGetVersion(int* version) {
  *version = gpu.version;
  return kOk;
}
FAKE const char* ncclGetErrorString(int result) {
  return result == kInvalidUsage ? "fake invalid usage" : result == 6 ? "fake remote error" : "fake error";
}
FAKE const char* ncclGetLastError(void*) {
  return "fake last words";
}
FAKE int ncclGetUniqueId(Id* id) {
  static std::atomic<uint64_t> next{1};
  if (fails("ncclGetUniqueId")) return 2;
  const uint64_t number = next++;
  std::memset(id->bytes, 7, sizeof id->bytes);
  std::memcpy(id->bytes + 100, &number, sizeof number);
  return kOk;
}
FAKE int ncclCommInitRankConfig(void** handle, int ranks, Id id, int rank, Config* config) {
  const std::lock_guard lock(mutex);
  if (fails("ncclCommInitRankConfig")) return kInvalidUsage;
  if (current_contexts == 0) return kUnhandledCuda;
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  const std::string key(id.bytes, sizeof id.bytes);
  auto& world = worlds()[key];
  if (!world) world = std::make_shared<World>();
  auto* comm = new Comm;
  comm->world = world;
  comm->ranks = ranks;
  comm->rank = rank;
  comm->polls = gpu.init_polls;
  if (++world->joined == ranks) worlds().erase(key);
  *handle = comm;
  ++gpu.created;
  return kInProgress;
}
FAKE int ncclCommGetAsyncError(void* handle, int* state) {
  const std::lock_guard lock(mutex);
  auto* comm = static_cast<Comm*>(handle);
  *state = kOk;
  if (comm->ready && gpu.async_error != 0) {
    *state = gpu.async_error;
    return kOk;
  }
  if (comm->ready && !comm->pending) return kOk;
  if (comm->polls > 0) --comm->polls;
  const bool waits = comm->polls != 0 || (!comm->ready && comm->world->joined < comm->ranks);
  if (waits) {
    ++gpu.in_progress;
    *state = kInProgress;
  } else if (!comm->ready) {
    comm->ready = true;
  } else if (!launch(*comm)) {
    *state = kInvalidUsage;
  }
  return kOk;
}
FAKE int ncclCommFinalize(void* handle) {
  const std::lock_guard lock(mutex);
  if (fails("ncclCommFinalize")) return kInvalidUsage;
  auto* comm = static_cast<Comm*>(handle);
  comm->ready = false;
  comm->polls = 2;
  ++gpu.finalized;
  return kInProgress;
}
FAKE int ncclCommDestroy(void* handle) {
  return finish_off(handle, &gpu.destroyed);
}
FAKE int ncclCommAbort(void* handle) {
  return finish_off(handle, &gpu.aborted);
}
FAKE int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, void* comm, void* stream) {
  return begin("ncclAllReduce", {Kind::kAllReduce, bytes_of(send), bytes_of(recv), count, type, op, 0}, comm, stream);
}
FAKE int ncclReduce(const void* send, void* recv, size_t count, int type, int op, int root, void* comm, void* stream) {
  return begin("ncclReduce", {Kind::kReduce, bytes_of(send), bytes_of(recv), count, type, op, root}, comm, stream);
}
FAKE int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op, void* comm, void* stream) {
  return begin("ncclReduceScatter", {Kind::kReduceScatter, bytes_of(send), bytes_of(recv), count, type, op, 0}, comm,
               stream);
}
FAKE int ncclAllGather(const void* send, void* recv, size_t count, int type, void* comm, void* stream) {
  return begin("ncclAllGather", {Kind::kAllGather, bytes_of(send), bytes_of(recv), count, type, 0, 0}, comm, stream);
}
FAKE int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, void* comm, void* stream) {
  return begin("ncclBroadcast", {Kind::kBroadcast, bytes_of(send), bytes_of(recv), count, type, 0, root}, comm, stream);
}

// --- The CUDA driver ---

FAKE int cuInit(unsigned) {
  return gpu.init_result;
}
FAKE int cuDeviceGetCount(int* count) {
  *count = gpu.devices;
  return kOk;
}
FAKE int cuGetErrorString(int result, const char** text) {
  *text = result == kLaunchFailed ? "fake launch failure" : "fake driver error";
  return kOk;
}
FAKE int cuDevicePrimaryCtxRetain(void** context, int) {
  if (fails("cuDevicePrimaryCtxRetain")) return kLaunchFailed;
  *context = &gpu;
  ++gpu.contexts;
  return kOk;
}
FAKE int cuDevicePrimaryCtxRelease_v2(int) {
  --gpu.contexts;
  return kOk;
}
FAKE int cuCtxPushCurrent_v2(void*) {
  ++current_contexts;
  return kOk;
}
FAKE int cuCtxPopCurrent_v2(void** context) {
  *context = &gpu;
  --current_contexts;
  return kOk;
}
FAKE int cuStreamCreate(void** stream, unsigned) {
  if (fails("cuStreamCreate")) return kLaunchFailed;
  if (current_contexts == 0) return kInvalidContext;
  const std::lock_guard lock(mutex);
  auto created = std::make_unique<Stream>();
  *stream = created.get();
  streams()[*stream] = std::move(created);
  ++gpu.streams;
  return kOk;
}
FAKE int cuStreamQuery(void* handle) {
  const std::lock_guard lock(mutex);
  if (fails("cuStreamQuery")) return kLaunchFailed;
  auto* stream = static_cast<Stream*>(handle);
  if (stream->running && !stream->running->done) return kNotReady;
  if (stream->polls > 0) --stream->polls;
  if (stream->polls != 0) return kNotReady;
  stream->running.reset();
  return kOk;
}
FAKE int cuStreamDestroy_v2(void* stream) {
  const std::lock_guard lock(mutex);
  streams().erase(stream);
  --gpu.streams;
  return kOk;
}
FAKE int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
  if (fails("cuPointerGetAttribute")) return kLaunchFailed;
  if (gpu.host.holds(address)) return kInvalidValue;
  const unsigned answer = attribute == 2 ? 2u : gpu.other_gpu.holds(address) ? 1u : 0u;
  std::memcpy(value, &answer, sizeof answer);
  return kOk;
}
FAKE int cuMemcpyDtoHAsync_v2(void* host, unsigned long long device, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync", host, reinterpret_cast<const void*>(device), bytes, stream);
}
FAKE int cuMemcpyHtoDAsync_v2(unsigned long long device, const void* host, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync", reinterpret_cast<void*>(device), host, bytes, stream);
}
FAKE int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoDAsync", reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes, stream);
}
