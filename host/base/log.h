// Log: lines to stderr with a prefix that says who speaks ("gatun[3]: ", "gatund: "). One write per line, so that lines of
// several processes do not mix. Never on the datapath. Each communicator owns one; there is no global state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gatun {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug };

// "error", "warn", "info", "debug"; kInfo for anything else (the settings table has checked it).
LogLevel log_level(std::string_view name);

class Log {
 public:
  explicit Log(std::string prefix, LogLevel level = LogLevel::kInfo, int fd = 2)
      : prefix_(std::move(prefix)), level_(level), fd_(fd) {}

  // printf formats; a newline is added.
  void error(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  void warn(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  void info(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  void debug(const char* format, ...) const __attribute__((format(printf, 2, 3)));

  bool shows(LogLevel level) const { return level <= level_; }
  void set_level(LogLevel level) { level_ = level; }
  const std::string& prefix() const { return prefix_; }

 private:
  void write(LogLevel level, const char* format, __builtin_va_list arguments) const;

  std::string prefix_;
  LogLevel level_;
  int fd_;
};

}  // namespace gatun
