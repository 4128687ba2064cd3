// Settings: one table of keys that feeds the file, the environment, flags, help, `gatun info` and the sample file.
//
// A value comes from the strongest source that names it: flag or API, then GATUN_<KEY>, then the file, then the default.
// The order in which sources are read does not matter. The file is the one named by --config or GATUN_CONFIG, else
// $XDG_CONFIG_HOME/gatun/gatun.toml (~/.config without the variable), else /etc/gatun/gatun.toml; none is fine.
// An error is one sentence with the place (file:line, variable or flag) and what was expected.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

inline constexpr uint16_t kDefaultPort = 7117;
inline constexpr uint16_t kDefaultMetricsPort = 7118;

// What the rest of the program reads. Defaults are in the table (settings.cc) and applied by Settings().
struct SettingValues {
  std::string address;  // where workers find the switch: "host", "host:port", "[v6]:port"
  std::string listen;   // where gatund listens; "" = loopback, both families
  uint16_t port = 0;    // of gatund: TCP control; UDP data from the same number up, one per lane; 0 = any free
  std::string job;
  std::string transport;   // "auto", "shm", "udp", "verbs", "dpdk"
  std::string device;      // for dpdk: host/transport/dpdk_spec.h has its words; "" = none
  std::string fallback;    // "ring", "exact", "off"
  std::string rendezvous;  // where rank 0 serves ranks that find neither a switch nor a store: "host:port"
  TimeNs detect = 0;       // a switch that answers nothing for this long is dead
  uint32_t trees = 0;
  uint32_t window = 0;         // chunks per tree, power of two; 0 = chosen at join
  uint32_t payload_bytes = 0;  // most payload of one packet, multiple of 64; 0 = what the path carries
  TimeNs timeout = 0;
  TimeNs join_timeout = 0;
  TimeNs keepalive = 0;       // a peer silent for this long is lost; a sign of life goes out every third of it
  TimeNs stall_warning = 0;   // 0 = never
  uint64_t memory_bytes = 0;  // of gatund, for all jobs
  uint32_t jobs = 0;
  uint32_t lanes = 0;
  TimeNs busy_poll = 0;  // spin this long before blocking
  TimeNs rto_min = 0;
  std::string metrics;  // of gatund: host, host:port or [v6]:port; "" = off
  std::string log;      // "error", "warn", "info", "debug"
};

inline constexpr int kSettings = 23;

class Settings {
 public:
  enum class Source : uint8_t { kDefault, kFile, kEnvironment, kFlag };  // the stronger, the larger

  struct Row {
    const char* key;       // file and --key; GATUN_KEY
    const char* preset;    // the default as a user would write it
    const char* expected;  // "a power of two from 2 to 4096, or auto"
    const char* help;
    bool (*parse)(std::string_view text, SettingValues* values);  // false: not what is expected; values unchanged
  };
  struct Origin {
    Source source = Source::kDefault;
    std::string text;   // the value as written
    std::string where;  // "default", "/etc/gatun/gatun.toml:3", "GATUN_TREES", "--trees", "gatun_options_t.trees"
  };

  Settings();  // all defaults

  static std::span<const Row> table();

  // Everything at once: takes the settings' flags out of args (null: no flags; what is not ours stays), finds and reads the
  // file, then the environment ("NAME=value" strings ending with a null pointer; null: this process's).
  Status load(std::vector<std::string>* args, const char* const* environment = nullptr);

  // The parts of load().
  Status take_flags(std::vector<std::string>* args);  // --key value, --key=value, --config PATH; '-' and '_' are the same
  Status read_file(const std::string& path);          // kInvalidArgument with path:line
  Status read_environment(const char* const* environment);

  // One value by key, for API options. where is shown to the user.
  Status set(std::string_view key, std::string_view text, Source source, std::string where);

  const SettingValues& values() const { return values_; }
  const Origin& origin(std::string_view key) const;
  const std::string& file() const { return file_; }  // the file that was read; "" if none
  // GATUN_ variables that are no setting: a sentence each, to be logged once.
  const std::vector<std::string>& warnings() const { return warnings_; }

  static std::string nearest(std::string_view key);  // the setting that was probably meant; "" if none is near
  static std::string help();                         // lines for --help
  static std::string sample_file();                  // every key with its default, commented out
  std::string describe() const;                      // "key  value  where", one line each

 private:
  SettingValues values_;
  std::array<Origin, kSettings> origins_;
  std::string config_path_, file_;
  std::vector<std::string> warnings_;
};

// Parsers, shared with the tools' own flags: "30s", "500ms", "20us", "100ns", "5m", "1h", "0"; "64K", "256M", "1G", "512".
bool parse_duration(std::string_view text, TimeNs* out);
bool parse_bytes(std::string_view text, uint64_t* out);
bool parse_unsigned(std::string_view text, uint64_t max, uint64_t* out);
template <typename T>
bool parse_number(std::string_view text, uint64_t min, uint64_t max, T* out) {
  uint64_t value = 0;
  if (!parse_unsigned(text, max, &value) || value < min) return false;
  *out = static_cast<T>(value);
  return true;
}
std::string format_duration(TimeNs duration);  // the shortest of the same form: "1500ms", "30s"
std::string format_bytes(uint64_t bytes);      // "256M", "1408"

}  // namespace gatun
