// The C boundary: checks every argument, turns Status into a code and keeps the sentence.
#include "host/lib/c_api.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "host/lib/c_api_options.h"
#include "protocols/membership.h"

using namespace gatun;

namespace {

// A child of fork() has the handles of its parent, but not its threads, and what it said would end the parent's job.
std::atomic<uint32_t> forks{0};
[[maybe_unused]] const int forks_are_counted = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

struct gatun_comm {
  std::unique_ptr<Communicator> communicator;
  const uint32_t made_after = forks;
  bool inherited() const { return made_after != forks.load(std::memory_order_relaxed); }
  std::mutex mutex;
  std::string last_error;  // guarded by mutex
};

namespace {

thread_local std::string thread_error;   // of calls without a communicator
thread_local std::string error_to_show;  // what gatun_last_error returned

int keep(gatun_comm_t comm, const Status& status) {
  if (status.ok()) return GATUN_SUCCESS;
  if (comm) {
    const std::lock_guard lock(comm->mutex);
    comm->last_error = status.message();
  } else {
    thread_error = status.message();
  }
  return static_cast<int>(status.code());
}

Status invalid(std::string sentence) {
  return {Code::kInvalidArgument, std::move(sentence)};
}

bool unusable(gatun_comm_t comm) {
  return !comm || comm->inherited() || Lane::in_done();
}

// Why a communicator is unusable. Kept for the thread: the lock of an inherited one may be held by a thread that is not
// here.
int refuse(const char* function, gatun_comm_t comm) {
  const char* why = !comm              ? ": comm is NULL; create it with gatun_comm_create"
                    : comm->inherited() ? ": comm belongs to the process that this one was forked from; create one here"
                                        : ": called from a done function; call it from another thread";
  return keep(nullptr, invalid(std::string(function) + why));
}

// What a collective call brings, before it is checked.
struct Arguments {
  const char* function;
  Collective collective;
  const void* send;
  void* recv;
  size_t count;
  int type;
  int op;
  int root;
};

Status invalid(const Arguments& a, const std::string& what) {
  return invalid(std::string(a.function) + ": " + what);
}

// Nothing here allocates unless something is wrong.
Status check(const Arguments& a, const Communicator& communicator, Contract* contract) {
  if (a.type < 0 || !valid_type(static_cast<unsigned>(a.type))) {
    return invalid(a, "type " + std::to_string(a.type) + " is none of gatun_type_t");
  }
  if (a.op < 0 || !valid_op(static_cast<unsigned>(a.op))) {
    return invalid(a, "op " + std::to_string(a.op) + " is none of gatun_op_t");
  }
  if (a.root < 0 || static_cast<uint32_t>(a.root) >= communicator.ranks()) {
    return invalid(a, "root " + std::to_string(a.root) + " is out of range; the ranks are 0 to " +
                          std::to_string(communicator.ranks() - 1));
  }
  contract->collective = a.collective;
  contract->type = static_cast<Type>(a.type);
  contract->op = static_cast<Op>(a.op);
  contract->root = static_cast<uint32_t>(a.root);
  contract->count = a.count;
  const int64_t send_bytes = Operation::send_bytes(*contract, communicator.rank(), communicator.ranks());
  const int64_t recv_bytes = Operation::receive_bytes(*contract, communicator.rank(), communicator.ranks());
  constexpr int64_t kAddressSpace = int64_t{1} << 47;
  if (send_bytes < 0 || recv_bytes < 0 || send_bytes > kAddressSpace || recv_bytes > kAddressSpace) {
    return invalid(a, "count " + std::to_string(a.count) + " of " + name(contract->type) + " is more than memory can hold");
  }
  if (send_bytes > 0 && !a.send) return invalid(a, "send is NULL");
  if (recv_bytes > 0 && !a.recv) return invalid(a, "recv is NULL");
  return {};
}

int run(gatun_comm_t comm, const Arguments& arguments) {
  if (unusable(comm)) return refuse(arguments.function, comm);
  Contract contract;
  Status status = check(arguments, *comm->communicator, &contract);
  if (status.ok()) status = comm->communicator->run(contract, arguments.send, arguments.recv);
  return keep(comm, status);
}

int start(gatun_comm_t comm, const Arguments& arguments, const gatun_call_t* call, gatun_request_t* request) {
  if (request) *request = nullptr;
  if (unusable(comm)) return refuse(arguments.function, comm);
  Contract contract;
  Lane::Call options;
  Status status = check(arguments, *comm->communicator, &contract);
  if (status.ok()) status = read_call(arguments.function, call, &options, &contract.tag);
  if (status.ok() && !request && !options.done) {
    status = invalid(std::string(arguments.function) +
                     ": request is NULL and call gives no done function; nobody would learn of the end");
  }
  Request* started = nullptr;
  if (status.ok()) {
    status = comm->communicator->start(contract, arguments.send, arguments.recv, options, request ? &started : nullptr);
  }
  if (status.ok() && started) {
    started->owner = comm;
    *request = reinterpret_cast<gatun_request_t>(started);
  }
  return keep(comm, status);
}

// After its end: the request's code; it is free and the handle NULL.
int finish(gatun_request_t* request) {
  Request* done = reinterpret_cast<Request*>(*request);
  auto* comm = static_cast<gatun_comm_t>(done->owner);
  *request = nullptr;
  return keep(comm, comm->communicator->take(done));
}

}  // namespace

gatun_comm_t gatun::make_handle(std::unique_ptr<Communicator> communicator) {
  return new gatun_comm{.communicator = std::move(communicator), .mutex = {}, .last_error = {}};
}

extern "C" {

int gatun_version(int* version) {
  if (!version) return keep(nullptr, invalid("gatun_version: version is NULL"));
  *version = GATUN_VERSION_MAJOR * 10000 + GATUN_VERSION_MINOR * 100 + GATUN_VERSION_PATCH;
  return GATUN_SUCCESS;
}

const char* gatun_error_string(int code) {
  switch (code) {
    case GATUN_SUCCESS: return "success";
    case GATUN_IN_PROGRESS: return "in progress";
    case GATUN_INVALID_ARGUMENT: return "invalid argument";
    case GATUN_MISMATCH: return "ranks disagree on the operation";
    case GATUN_TIMEOUT: return "timed out";
    case GATUN_RANK_LOST: return "a rank is lost";
    case GATUN_SWITCH_LOST: return "the switch is lost";
    case GATUN_REFUSED: return "refused by the switch";
    case GATUN_UNSUPPORTED: return "not supported";
    case GATUN_SYSTEM: return "operating system error";
    case GATUN_ABORTED: return "aborted";
    case GATUN_INTERNAL: return "internal error";
    default: return "unknown code";
  }
}

const char* gatun_last_error(gatun_comm_t comm) {
  if (unusable(comm)) return thread_error.c_str();
  const std::lock_guard lock(comm->mutex);
  error_to_show = comm->last_error;
  return error_to_show.c_str();
}

int gatun_comm_create(gatun_comm_t* comm, int nranks, int rank, const gatun_options_t* options) {
  if (!comm) return keep(nullptr, invalid("gatun_comm_create: comm is NULL"));
  *comm = nullptr;
  if (nranks < 1 || nranks > static_cast<int>(kRanksMax)) {
    return keep(nullptr, invalid("gatun_comm_create: nranks is " + std::to_string(nranks) + "; a job has 1 to " +
                                 std::to_string(kRanksMax) + " ranks"));
  }
  if (rank < 0 || rank >= nranks) {
    return keep(nullptr, invalid("gatun_comm_create: rank " + std::to_string(rank) + " is out of range; " +
                                 std::to_string(nranks) + " ranks are numbered 0 to " + std::to_string(nranks - 1)));
  }
  try {
    std::vector<std::string> warnings;
    std::unique_ptr<Store> store;
    Result<SettingValues> settings = load_settings(options, &warnings, &store);
    if (!settings.ok()) return keep(nullptr, settings.status());
    Result<std::unique_ptr<Communicator>> made = Communicator::create({.settings = std::move(settings.value()),
                                                                       .rank = static_cast<uint32_t>(rank),
                                                                       .ranks = static_cast<uint32_t>(nranks),
                                                                       .store = std::move(store)});
    if (!made.ok()) return keep(nullptr, made.status());
    for (const std::string& warning : warnings) made.value()->log().warn("%s", warning.c_str());
    *comm = make_handle(std::move(made.value()));
  } catch (const std::exception& error) {  // out of memory
    return keep(nullptr, {Code::kSystem, std::string("gatun_comm_create: ") + error.what()});
  }
  return GATUN_SUCCESS;
}

int gatun_comm_destroy(gatun_comm_t comm) {
  if (!comm || Lane::in_done()) return refuse("gatun_comm_destroy", comm);
  if (comm->inherited()) return GATUN_SUCCESS;  // forgotten, so that what owns it in both processes may let go of it
  delete comm;
  return GATUN_SUCCESS;
}

int gatun_comm_abort(gatun_comm_t comm) {
  if (unusable(comm)) return refuse("gatun_comm_abort", comm);
  comm->communicator->abort_job("gatun_comm_abort was called on rank " + std::to_string(comm->communicator->rank()));
  return GATUN_SUCCESS;
}

int gatun_comm_async_error(gatun_comm_t comm) {
  if (unusable(comm)) return refuse("gatun_comm_async_error", comm);
  return keep(comm, comm->communicator->failure());
}

int gatun_comm_stats(gatun_comm_t comm, gatun_stats_t* stats) {
  if (unusable(comm)) return refuse("gatun_comm_stats", comm);
  return keep(comm, write_stats(comm->communicator->facts(), comm->communicator->stats(), stats));
}

int gatun_register(gatun_comm_t comm, void* address, size_t bytes) {
  if (unusable(comm)) return refuse("gatun_register", comm);
  if (!address) return keep(comm, invalid("gatun_register: address is NULL"));
  if (bytes == 0) return keep(comm, invalid("gatun_register: bytes is 0"));
  if (bytes > PTRDIFF_MAX || reinterpret_cast<uintptr_t>(address) > UINTPTR_MAX - bytes)
    return keep(comm, invalid("gatun_register: no memory is " + std::to_string(bytes) + " bytes long from there"));
  const Status status = comm->communicator->register_memory({static_cast<std::byte*>(address), bytes});
  return keep(comm, status.ok() ? status : Status(status.code(), std::string("gatun_register: ") + status.message()));
}

int gatun_deregister(gatun_comm_t comm, const void* address) {
  if (unusable(comm)) return refuse("gatun_deregister", comm);
  const Status status = comm->communicator->deregister_memory(address);
  return keep(comm, status.ok() ? status : Status(status.code(), std::string("gatun_deregister: ") + status.message()));
}

int gatun_allreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, gatun_comm_t comm) {
  return run(comm, {"gatun_allreduce", Collective::kAllReduce, send, recv, count, type, op, 0});
}

int gatun_reduce_scatter(const void* send, void* recv, size_t recv_count, gatun_type_t type, gatun_op_t op,
                         gatun_comm_t comm) {
  return run(comm, {"gatun_reduce_scatter", Collective::kReduceScatter, send, recv, recv_count, type, op, 0});
}

int gatun_allgather(const void* send, void* recv, size_t send_count, gatun_type_t type, gatun_comm_t comm) {
  return run(comm, {"gatun_allgather", Collective::kAllGather, send, recv, send_count, type, GATUN_SUM, 0});
}

int gatun_broadcast(const void* send, void* recv, size_t count, gatun_type_t type, int root, gatun_comm_t comm) {
  return run(comm, {"gatun_broadcast", Collective::kBroadcast, send, recv, count, type, GATUN_SUM, root});
}

int gatun_reduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, int root, gatun_comm_t comm) {
  return run(comm, {"gatun_reduce", Collective::kReduce, send, recv, count, type, op, root});
}

int gatun_barrier(gatun_comm_t comm) {
  return run(comm, {"gatun_barrier", Collective::kBarrier, nullptr, nullptr, 0, GATUN_U8, GATUN_SUM, 0});
}

int gatun_iallreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, gatun_comm_t comm,
                     const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_iallreduce", Collective::kAllReduce, send, recv, count, type, op, 0}, call, request);
}

int gatun_ireduce_scatter(const void* send, void* recv, size_t recv_count, gatun_type_t type, gatun_op_t op,
                          gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_ireduce_scatter", Collective::kReduceScatter, send, recv, recv_count, type, op, 0}, call,
               request);
}

int gatun_iallgather(const void* send, void* recv, size_t send_count, gatun_type_t type, gatun_comm_t comm,
                     const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_iallgather", Collective::kAllGather, send, recv, send_count, type, GATUN_SUM, 0}, call,
               request);
}

int gatun_ibroadcast(const void* send, void* recv, size_t count, gatun_type_t type, int root, gatun_comm_t comm,
                     const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_ibroadcast", Collective::kBroadcast, send, recv, count, type, GATUN_SUM, root}, call, request);
}

int gatun_ireduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op, int root, gatun_comm_t comm,
                  const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_ireduce", Collective::kReduce, send, recv, count, type, op, root}, call, request);
}

int gatun_ibarrier(gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request) {
  return start(comm, {"gatun_ibarrier", Collective::kBarrier, nullptr, nullptr, 0, GATUN_U8, GATUN_SUM, 0}, call, request);
}

int gatun_test(gatun_request_t* request) {
  if (!request || !*request)
    return keep(nullptr, invalid("gatun_test: the request is NULL; it is set to NULL when it is complete"));
  Request* pending = reinterpret_cast<Request*>(*request);
  auto* comm = static_cast<gatun_comm_t>(pending->owner);
  if (unusable(comm)) return refuse("gatun_test", comm);
  if (!comm->communicator->test(pending)) return GATUN_IN_PROGRESS;
  return finish(request);
}

int gatun_wait(gatun_request_t* request, int64_t timeout_ms) {
  if (!request || !*request)
    return keep(nullptr, invalid("gatun_wait: the request is NULL; it is set to NULL when it is complete"));
  Request* pending = reinterpret_cast<Request*>(*request);
  auto* comm = static_cast<gatun_comm_t>(pending->owner);
  if (unusable(comm)) return refuse("gatun_wait", comm);
  const bool limited = timeout_ms >= 0 && timeout_ms < kNever / kMs / 2;
  const TimeNs until = limited ? now_ns() + timeout_ms * kMs : kNever;
  if (!comm->communicator->wait(pending, until)) return GATUN_IN_PROGRESS;
  return finish(request);
}

}  // extern "C"
