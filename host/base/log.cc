#include "host/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace gatun {
namespace {

constexpr size_t kLineBytes = 2048;  // below PIPE_BUF (4096), so that one write is one line on a pipe too

}  // namespace

LogLevel log_level(std::string_view name) {
  if (name == "error") return LogLevel::kError;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "debug") return LogLevel::kDebug;
  return LogLevel::kInfo;
}

void Log::write(LogLevel level, const char* format, va_list arguments) const {
  static constexpr const char* kMark[] = {"error: ", "warning: ", "", "debug: "};
  char line[kLineBytes];
  int used = std::snprintf(line, sizeof line, "%s: %s", prefix_.c_str(), kMark[static_cast<int>(level)]);
  size_t size = std::min(static_cast<size_t>(std::max(used, 0)), sizeof line - 2);
  used = std::vsnprintf(line + size, sizeof line - size - 1, format, arguments);
  size = std::min(size + static_cast<size_t>(std::max(used, 0)), sizeof line - 2);
  line[size++] = '\n';
  // A log line that cannot be written has nowhere to be reported.
  [[maybe_unused]] ssize_t written = ::write(fd_, line, size);
}

#define GATUN_LOG_BODY(level)      \
  if (!shows(level)) return;       \
  va_list arguments;               \
  va_start(arguments, format);     \
  write(level, format, arguments); \
  va_end(arguments)

void Log::error(const char* format, ...) const {
  GATUN_LOG_BODY(LogLevel::kError);
}
void Log::warn(const char* format, ...) const {
  GATUN_LOG_BODY(LogLevel::kWarn);
}
void Log::info(const char* format, ...) const {
  GATUN_LOG_BODY(LogLevel::kInfo);
}
void Log::debug(const char* format, ...) const {
  GATUN_LOG_BODY(LogLevel::kDebug);
}

#undef GATUN_LOG_BODY

}  // namespace gatun
