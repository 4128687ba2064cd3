// Status and Result: how everything below the C boundary reports what the world did wrong.
//
// Success is a null pointer and costs nothing. An error carries the code that the C API returns and one sentence that
// names the thing and the fix. Our own bugs are GATUN_CHECK, which is on in every build and never used on input.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace gatun {

// Values are the C ABI's (include/gatun/gatun.h): 0 done, > 0 in progress, < 0 error.
enum class Code : int {
  kOk = 0,
  kInProgress = 1,
  kInvalidArgument = -1,
  kMismatch = -2,
  kTimeout = -3,
  kRankLost = -4,
  kSwitchLost = -5,
  kRefused = -6,
  kUnsupported = -7,
  kSystem = -8,
  kAborted = -9,
  kInternal = -10,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : error_(std::make_unique<Error>(Error{code, std::move(message)})) {}
  Status(const Status& other) : error_(other.error_ ? std::make_unique<Error>(*other.error_) : nullptr) {}
  Status& operator=(const Status& other) {
    error_ = other.error_ ? std::make_unique<Error>(*other.error_) : nullptr;
    return *this;
  }
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;

  bool ok() const { return error_ == nullptr; }
  Code code() const { return error_ ? error_->code : Code::kOk; }
  const char* message() const { return error_ ? error_->message.c_str() : ""; }

 private:
  struct Error {
    Code code;
    std::string message;
  };
  std::unique_ptr<Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

[[noreturn]] inline void check_failed(const char* what, const char* file, int line) {
  std::fprintf(stderr, "gatun: internal check failed: %s (%s:%d)\n", what, file, line);
  std::abort();
}

}  // namespace gatun

#define GATUN_CHECK(condition) \
  do {                         \
    if (!(condition)) [[unlikely]] ::gatun::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
