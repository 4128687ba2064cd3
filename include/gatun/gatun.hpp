// Gatun for C++17: the C API of gatun.h with owners for its handles, exceptions for its codes, and element types from C++'s.
//
// Everything is inline over the C ABI. Errors throw gatun::Error, whose what() is the library's sentence. Types without a
// C++ counterpart (f16, bf16, f8) are passed by pointer and gatun_type_t, or by a specialisation of gatun::Element.
#pragma once

#include <gatun/gatun.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace gatun {

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  int code() const noexcept { return code_; }  // GATUN_MISMATCH, ...

 private:
  int code_;
};

// The element type that a C++ type is on the wire.
template <typename T, typename Enable = void>
struct Element;
template <>
struct Element<float> {
  static constexpr gatun_type_t type = GATUN_F32;
};
template <>
struct Element<double> {
  static constexpr gatun_type_t type = GATUN_F64;
};
template <typename T>
struct Element<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static constexpr gatun_type_t type = sizeof(T) == 1   ? (std::is_signed_v<T> ? GATUN_I8 : GATUN_U8)
                                       : sizeof(T) == 4 ? (std::is_signed_v<T> ? GATUN_I32 : GATUN_U32)
                                                        : (std::is_signed_v<T> ? GATUN_I64 : GATUN_U64);
  static_assert(sizeof(T) != 2, "Gatun has no 16-bit integers");
};

// How to join; what is left empty or 0 comes from the environment and the settings file.
struct Options {
  std::string address, job, transport, fallback, rendezvous;
  int trees = 0, window = 0, payload_bytes = 0;
  std::chrono::milliseconds timeout{0}, join_timeout{0}, detect{0};
};

struct Call {
  uint64_t tag = 0;
  std::chrono::milliseconds timeout{0};
};

// A started operation. Its buffers must live until it is complete; the destructor waits for that.
class Request {
 public:
  Request() = default;
  Request(gatun_request_t handle, gatun_comm_t comm) : handle_(handle), comm_(comm) {}
  Request(Request&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), comm_(other.comm_) {}
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      finish();
      handle_ = std::exchange(other.handle_, nullptr);
      comm_ = other.comm_;
    }
    return *this;
  }
  ~Request() { finish(); }

  bool pending() const noexcept { return handle_ != nullptr; }
  // True once complete. Throws if the operation failed.
  bool test() { return !handle_ || complete(gatun_test(&handle_)); }
  bool wait_for(std::chrono::milliseconds time) {
    return !handle_ || complete(gatun_wait(&handle_, time.count() < 0 ? 0 : time.count()));
  }
  void wait() {
    if (handle_) complete(gatun_wait(&handle_, -1));
  }

 private:
  bool complete(int code) {
    if (code < 0) throw Error(code, gatun_last_error(comm_));
    return code == GATUN_SUCCESS;
  }
  void finish() noexcept {
    if (handle_) gatun_wait(&handle_, -1);
  }

  gatun_request_t handle_ = nullptr;
  gatun_comm_t comm_ = nullptr;
};

// Memory that is registered as long as this lives.
class Registration {
 public:
  Registration() = default;
  Registration(gatun_comm_t comm, void* address, size_t bytes) : comm_(comm), address_(address) {
    const int code = gatun_register(comm, address, bytes);
    if (code != GATUN_SUCCESS) throw Error(code, gatun_last_error(comm));
  }
  Registration(Registration&& other) noexcept : comm_(other.comm_), address_(std::exchange(other.address_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~Registration() {
    if (address_) gatun_deregister(comm_, address_);
  }

 private:
  gatun_comm_t comm_ = nullptr;
  void* address_ = nullptr;
};

// One rank of a job. Any thread may call. Requests and registrations must not outlive it.
class Communicator {
 public:
  // Joins; returns when all ranks have.
  Communicator(int nranks, int rank, const Options& options = {}) {
    gatun_options_t c = GATUN_OPTIONS_INIT;
    c.address = options.address.empty() ? nullptr : options.address.c_str();
    c.job = options.job.empty() ? nullptr : options.job.c_str();
    c.transport = options.transport.empty() ? nullptr : options.transport.c_str();
    c.trees = options.trees;
    c.window = options.window;
    c.payload_bytes = options.payload_bytes;
    c.timeout_ms = options.timeout.count();
    c.join_timeout_ms = options.join_timeout.count();
    c.fallback = options.fallback.empty() ? nullptr : options.fallback.c_str();
    c.rendezvous = options.rendezvous.empty() ? nullptr : options.rendezvous.c_str();
    c.detect_ms = options.detect.count();
    const int code = gatun_comm_create(&handle_, nranks, rank, &c);
    if (code != GATUN_SUCCESS) throw Error(code, gatun_last_error(nullptr));
  }
  explicit Communicator(gatun_comm_t handle) : handle_(handle) {}
  Communicator(Communicator&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Communicator() {
    if (handle_) gatun_comm_destroy(handle_);
  }

  gatun_comm_t handle() const noexcept { return handle_; }
  int rank() const { return stats().rank; }
  int size() const { return stats().nranks; }
  gatun_stats_t stats() const {
    gatun_stats_t stats{};
    stats.size = sizeof stats;
    check(gatun_comm_stats(handle_, &stats));
    return stats;
  }
  void abort_job() { check(gatun_comm_abort(handle_)); }
  int async_error() const noexcept { return gatun_comm_async_error(handle_); }

  // Operations on this memory go without copies where the transport can; see gatun_register().
  [[nodiscard]] Registration register_memory(void* address, size_t bytes) { return Registration(handle_, address, bytes); }

  // Blocking.
  template <typename T>
  void allreduce(const T* send, T* recv, size_t count, gatun_op_t op = GATUN_SUM) {
    check(gatun_allreduce(send, recv, count, Element<T>::type, op, handle_));
  }
  void allreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op = GATUN_SUM) {
    check(gatun_allreduce(send, recv, count, type, op, handle_));
  }
  template <typename T>
  void reduce_scatter(const T* send, T* recv, size_t recv_count, gatun_op_t op = GATUN_SUM) {
    check(gatun_reduce_scatter(send, recv, recv_count, Element<T>::type, op, handle_));
  }
  template <typename T>
  void allgather(const T* send, T* recv, size_t send_count) {
    check(gatun_allgather(send, recv, send_count, Element<T>::type, handle_));
  }
  template <typename T>
  void broadcast(T* data, size_t count, int root) {
    check(gatun_broadcast(data, data, count, Element<T>::type, root, handle_));
  }
  template <typename T>
  void reduce(const T* send, T* recv, size_t count, int root, gatun_op_t op = GATUN_SUM) {
    check(gatun_reduce(send, recv, count, Element<T>::type, op, root, handle_));
  }
  void barrier() { check(gatun_barrier(handle_)); }

  // Started only.
  template <typename T>
  [[nodiscard]] Request iallreduce(const T* send, T* recv, size_t count, gatun_op_t op = GATUN_SUM, const Call& call = {}) {
    return iallreduce(send, recv, count, Element<T>::type, op, call);
  }
  [[nodiscard]] Request iallreduce(const void* send, void* recv, size_t count, gatun_type_t type, gatun_op_t op = GATUN_SUM,
                                   const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) {
      return gatun_iallreduce(send, recv, count, type, op, handle_, c, r);
    });
  }
  template <typename T>
  [[nodiscard]] Request ireduce_scatter(const T* send, T* recv, size_t recv_count, gatun_op_t op = GATUN_SUM,
                                        const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) {
      return gatun_ireduce_scatter(send, recv, recv_count, Element<T>::type, op, handle_, c, r);
    });
  }
  template <typename T>
  [[nodiscard]] Request iallgather(const T* send, T* recv, size_t send_count, const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) {
      return gatun_iallgather(send, recv, send_count, Element<T>::type, handle_, c, r);
    });
  }
  template <typename T>
  [[nodiscard]] Request ibroadcast(T* data, size_t count, int root, const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) {
      return gatun_ibroadcast(data, data, count, Element<T>::type, root, handle_, c, r);
    });
  }
  template <typename T>
  [[nodiscard]] Request ireduce(const T* send, T* recv, size_t count, int root, gatun_op_t op = GATUN_SUM,
                                const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) {
      return gatun_ireduce(send, recv, count, Element<T>::type, op, root, handle_, c, r);
    });
  }
  [[nodiscard]] Request ibarrier(const Call& call = {}) {
    return start(call, [&](const gatun_call_t* c, gatun_request_t* r) { return gatun_ibarrier(handle_, c, r); });
  }

 private:
  void check(int code) const {
    if (code != GATUN_SUCCESS) throw Error(code, gatun_last_error(handle_));
  }
  template <typename F>
  Request start(const Call& call, F f) {
    gatun_call_t c = GATUN_CALL_INIT;
    c.tag = call.tag;
    c.timeout_ms = call.timeout.count();
    gatun_request_t request = nullptr;
    check(f(&c, &request));
    return Request(request, handle_);
  }

  gatun_comm_t handle_ = nullptr;
};

}  // namespace gatun
