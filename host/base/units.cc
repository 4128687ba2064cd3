#include <charconv>

#include "host/base/settings.h"

namespace gatun {
namespace {

struct Unit {
  std::string_view suffix;
  uint64_t scale;
};
// Largest first: format picks the first that divides the value.
constexpr Unit kDurations[] = {
    {"h", 3600 * uint64_t{kSecond}}, {"m", 60 * uint64_t{kSecond}}, {"s", kSecond}, {"ms", kMs}, {"us", kUs}, {"ns", 1}};
constexpr Unit kSizes[] = {{"G", uint64_t{1} << 30}, {"M", uint64_t{1} << 20}, {"K", uint64_t{1} << 10}, {"", 1}};

template <size_t N>
bool parse_scaled(std::string_view text, const Unit (&units)[N], uint64_t max, uint64_t* out) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& unit : units) {
    if (suffix != unit.suffix) continue;
    if (number > max / unit.scale) return false;
    *out = number * unit.scale;
    return true;
  }
  if (!suffix.empty() || number != 0) return false;  // "0" needs no unit
  *out = 0;
  return true;
}

template <size_t N>
std::string format_scaled(uint64_t value, const Unit (&units)[N]) {
  for (const Unit& unit : units) {
    if (value % unit.scale == 0) return std::to_string(value / unit.scale) + std::string(unit.suffix);
  }
  return std::to_string(value);
}

}  // namespace

bool parse_duration(std::string_view text, TimeNs* out) {
  uint64_t value = 0;
  if (!parse_scaled(text, kDurations, INT64_MAX / 2, &value)) return false;
  *out = static_cast<TimeNs>(value);
  return true;
}

bool parse_bytes(std::string_view text, uint64_t* out) {
  return parse_scaled(text, kSizes, INT64_MAX, out);
}

bool parse_unsigned(std::string_view text, uint64_t max, uint64_t* out) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) return false;
  *out = value;
  return true;
}

std::string format_duration(TimeNs duration) {
  return duration == 0 ? "0" : format_scaled(static_cast<uint64_t>(duration), kDurations);
}

std::string format_bytes(uint64_t bytes) {
  return bytes == 0 ? "0" : format_scaled(bytes, kSizes);
}

}  // namespace gatun
