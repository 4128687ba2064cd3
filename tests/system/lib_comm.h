// A communicator of the C API for tests: its options, its owner, and faults put on its transports.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gatun/gatun.h"
#include "host/lib/attach.h"

namespace gatun {

struct RankOptions {
  std::string address;
  std::string job = "test";
  std::string transport = "auto";
  int trees = 1;
  int window = 0;
  int payload_bytes = 0;
  int64_t timeout_ms = 20'000;
  int64_t join_timeout_ms = 20'000;
  std::string fallback = "off";
  std::string rendezvous;
  int64_t detect_ms = 0;
  TransportWrapper wrap;
};

gatun_options_t c_options(const RankOptions& options);

// Owns a communicator.
class Comm {
 public:
  Comm() = default;
  Comm(int ranks, int rank, const RankOptions& options);
  Comm(Comm&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), code_(other.code_), error_(std::move(other.error_)) {}
  ~Comm() { reset(); }
  void reset();
  operator gatun_comm_t() const { return handle_; }
  gatun_comm_t release() { return std::exchange(handle_, nullptr); }
  int code() const { return code_; }  // of the creation
  const std::string& error() const { return error_; }
  std::string last_error() const { return gatun_last_error(handle_); }
  gatun_stats_t stats() const;

 private:
  gatun_comm_t handle_ = nullptr;
  int code_ = 0;
  std::string error_;
};

// Wraps transports in faults, both ways.
TransportWrapper lossy(uint64_t seed, double drop, double duplicate, double hold, double corrupt);

// Only says that the device of a transport is near these cores.
TransportWrapper near_cores(const std::vector<int>& cores);

// "" if the code is the expected one, else a sentence with the library's.
std::string expect_code(int expected, int code, gatun_comm_t comm, const std::string& what);

}  // namespace gatun
