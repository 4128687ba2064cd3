#include "host/base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "host/base/os.h"
#include "protocols/aggregator.h"
#include "protocols/worker.h"

namespace gatun {
namespace {

constexpr uint32_t kPayloadBytesMax = 1 << 20;  // of one packet; 24 bits of elements in the header would allow more
constexpr TimeNs kDurationMax = 720 * 3600 * kSecond;
constexpr uint64_t kMemoryBytesMax = uint64_t{1} << 44;

bool parse_time(std::string_view text, TimeNs min, TimeNs* out) {
  TimeNs value = 0;
  if (!parse_duration(text, &value) || value < min || value > kDurationMax) return false;
  *out = value;
  return true;
}

bool parse_text(std::string_view text, size_t bytes_max, std::string* out) {
  auto printable = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; };
  if (text.empty() || text.size() > bytes_max || !std::all_of(text.begin(), text.end(), printable)) return false;
  *out = text;
  return true;
}

bool parse_choice(std::string_view text, std::initializer_list<std::string_view> choices, std::string* out) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) return false;
  *out = text;
  return true;
}

bool parse_window(std::string_view text, SettingValues* values) {
  uint32_t window = 0;
  if (text != "auto" && (!parse_number(text, 2, kWindowMax, &window) || !std::has_single_bit(window))) return false;
  values->window = window;
  return true;
}

bool parse_payload(std::string_view text, SettingValues* values) {
  uint64_t bytes = 0;
  if (text != "auto" && (!parse_bytes(text, &bytes) || bytes < 64 || bytes > kPayloadBytesMax || bytes % 64 != 0))
    return false;
  values->payload_bytes = static_cast<uint32_t>(bytes);
  return true;
}

bool parse_memory(std::string_view text, SettingValues* values) {
  uint64_t bytes = 0;
  if (!parse_bytes(text, &bytes) || bytes < (16 << 20) || bytes > kMemoryBytesMax) return false;
  values->memory_bytes = bytes;
  return true;
}

bool parse_listen(std::string_view text, SettingValues* values) {
  if (text != "loopback") return parse_text(text, 255, &values->listen);
  values->listen.clear();
  return true;
}

// A port is needed: the default would hide that the address is something else.
bool parse_rendezvous(std::string_view text, SettingValues* values) {
  std::string host;
  uint16_t port = 0;
  if (!split_address(std::string(text), 0, &host, &port).ok() || host.empty() || port == 0) return false;
  return parse_text(text, 255, &values->rendezvous);
}

bool parse_metrics(std::string_view text, SettingValues* values) {
  if (text != "off") return parse_text(text, 255, &values->metrics);
  values->metrics.clear();
  return true;
}

bool parse_device(std::string_view text, SettingValues* values) {
  if (text != "none") return parse_text(text, 255, &values->device);
  values->device.clear();
  return true;
}

using Values = SettingValues;
using Text = std::string_view;

constexpr Settings::Row kTable[] = {
    {"address", "127.0.0.1:7117", "host, host:port or [v6]:port", "where workers find the switch",
     [](Text t, Values* v) { return parse_text(t, 255, &v->address); }},
    {"listen", "loopback", "loopback, or addresses of this host separated by commas, such as 0.0.0.0",
     "gatund: where to serve", parse_listen},
    {"port", "7117", "a number from 0 to 65535; 0 takes a free one",
     "gatund: TCP port of the control channel; UDP data uses the same numbers up, one per lane",
     [](Text t, Values* v) { return parse_number(t, 0, 65535, &v->port); }},
    {"job", "default", "a name of 1 to 128 printable bytes", "name of the job; all ranks give the same",
     [](Text t, Values* v) { return parse_text(t, 128, &v->job); }},
    {"transport", "auto", "auto, shm, udp, verbs or dpdk",
     "how packets travel; auto takes shm where the switch is on this host, else dpdk if there is a device, else udp",
     [](Text t, Values* v) {
       return parse_choice(t, {"auto", "shm", "udp", "verbs", "dpdk"}, &v->transport);
     }},
    {"device", "none", "none, or a device of DPDK and this end's address, such as '0000:3b:00.0 10.0.0.2/24'",
     "for dpdk: a PCI address or virtual device, IP/PREFIX, and gateway=IP, mac=MAC, mtu=BYTES, eal=ARGUMENT", parse_device},
    {"fallback", "ring", "ring, exact or off",
     "how operations go on without the switch: a ring; exact, which gives the switch's very bits; or an error",
     [](Text t, Values* v) {
       return parse_choice(t, {"ring", "exact", "off"}, &v->fallback);
     }},
    {"rendezvous", "127.0.0.1:7119", "host:port of rank 0", "where ranks meet that find no switch and were given no store",
     parse_rendezvous},
    {"detect", "500ms", "a time such as 500ms, from 10ms to 720h",
     "a switch that answers nothing for this long is taken for dead",
     [](Text t, Values* v) { return parse_time(t, 10 * kMs, &v->detect); }},
    {"trees", "1", "a number from 1 to 16", "aggregation trees of the job",
     [](Text t, Values* v) { return parse_number(t, 1, kTreesMax, &v->trees); }},
    {"window", "auto", "a power of two from 2 to 4096, or auto", "chunks in flight per tree", parse_window},
    {"payload", "auto", "a multiple of 64 from 64 to 1M, or auto", "most payload bytes of one packet", parse_payload},
    {"timeout", "300s", "a time such as 30s or 500ms, from 1ms to 720h", "deadline of one operation",
     [](Text t, Values* v) { return parse_time(t, kMs, &v->timeout); }},
    {"join_timeout", "60s", "a time such as 30s or 500ms, from 1ms to 720h", "deadline for all ranks to have joined",
     [](Text t, Values* v) { return parse_time(t, kMs, &v->join_timeout); }},
    {"keepalive", "30s", "a time such as 30s or 500ms, from 30ms to 720h",
     "a rank or switch that is silent for this long is lost",
     [](Text t, Values* v) { return parse_time(t, 30 * kMs, &v->keepalive); }},
    {"stall_warning", "10s", "a time such as 10s, from 1ms to 720h, or 0 for never",
     "warn when an operation has waited this long for other ranks",
     [](Text t, Values* v) {
       return parse_time(t, t == "0" ? 0 : kMs, &v->stall_warning);
     }},
    {"memory", "256M", "a size such as 256M, from 16M to 16384G",
     "gatund: memory for all jobs; received packets may take as much again", parse_memory},
    {"jobs", "64", "a number from 1 to 1024", "gatund: jobs at the same time",
     [](Text t, Values* v) { return parse_number(t, 1, 1024, &v->jobs); }},
    {"lanes", "1", "a number from 1 to 64", "gatund: datapath threads",
     [](Text t, Values* v) { return parse_number(t, 1, 64, &v->lanes); }},
    {"busy_poll", "0", "a time such as 50us, at most 1s, or 0", "spin this long before blocking; only with a core to spare",
     [](Text t, Values* v) {
       TimeNs spin = 0;
       if (!parse_duration(t, &spin) || spin > kSecond) return false;
       v->busy_poll = spin;
       return true;
     }},
    {"rto_min", "20ms", "a time such as 20ms, from 10us to 720h", "least time after which a lost packet is sent again",
     [](Text t, Values* v) { return parse_time(t, 10 * kUs, &v->rto_min); }},
    {"metrics", "127.0.0.1:7118", "host:port, or off", "gatund: where http serves /metrics (Prometheus) and /health",
     parse_metrics},
    {"log", "info", "error, warn, info or debug", "how much to write to stderr",
     [](Text t, Values* v) {
       return parse_choice(t, {"error", "warn", "info", "debug"}, &v->log);
     }},
};
static_assert(std::size(kTable) == kSettings);

std::string dashes_to_underscores(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

int row_index(std::string_view key) {
  for (int i = 0; i < kSettings; ++i) {
    if (key == kTable[i].key) return i;
  }
  return -1;
}

std::string default_path() {
  std::string home;
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && config[0] == '/') {
    home = config;
  } else if (const char* directory = std::getenv("HOME"); directory != nullptr && directory[0] == '/') {
    home = std::string(directory) + "/.config";
  }
  if (!home.empty()) {
    std::string path = home + "/gatun/gatun.toml";
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return ::access("/etc/gatun/gatun.toml", F_OK) == 0 ? "/etc/gatun/gatun.toml" : "";
}

}  // namespace

std::span<const Settings::Row> Settings::table() {
  return kTable;
}

Settings::Settings() {
  for (int i = 0; i < kSettings; ++i) {
    GATUN_CHECK(kTable[i].parse(kTable[i].preset, &values_));
    origins_[i] = Origin{Source::kDefault, kTable[i].preset, "default"};
  }
}

Status Settings::load(std::vector<std::string>* args, const char* const* environment) {
  if (environment == nullptr) environment = ::environ;
  if (args != nullptr) {
    if (Status status = take_flags(args); !status.ok()) return status;
  }
  if (Status status = read_environment(environment); !status.ok()) return status;
  std::string path = config_path_.empty() ? default_path() : config_path_;
  return path.empty() ? Status() : read_file(path);
}

Status Settings::take_flags(std::vector<std::string>* args) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < args->size(); ++i) {
    const std::string& arg = (*args)[i];
    if (arg == "--") {
      rest.insert(rest.end(), args->begin() + static_cast<ptrdiff_t>(i), args->end());
      break;
    }
    size_t equals = arg.find('=');
    bool flag = arg.size() > 2 && arg.compare(0, 2, "--") == 0;
    std::string key =
        flag ? dashes_to_underscores(std::string_view(arg).substr(2, equals == arg.npos ? arg.npos : equals - 2)) : "";
    int row = row_index(key);
    if (row < 0 && key != "config") {
      rest.push_back(arg);
      continue;
    }
    std::string value;
    if (equals != arg.npos) {
      value = arg.substr(equals + 1);
    } else if (i + 1 < args->size() && (*args)[i + 1].compare(0, 2, "--") != 0) {
      value = (*args)[++i];
    } else {
      return Status(Code::kInvalidArgument,
                    arg + " needs a value: " + (row < 0 ? "the path of a settings file" : kTable[row].expected));
    }
    if (row < 0) {
      config_path_ = value;
    } else if (Status status = set(key, value, Source::kFlag, arg.substr(0, equals)); !status.ok()) {
      return status;
    }
  }
  *args = std::move(rest);
  return {};
}

Status Settings::read_environment(const char* const* environment) {
  for (; *environment != nullptr; ++environment) {
    std::string_view entry(*environment);
    size_t equals = entry.find('=');
    if (entry.substr(0, 6) != "GATUN_" || equals == entry.npos) continue;
    std::string name(entry.substr(0, equals));
    std::string value(entry.substr(equals + 1));
    std::string key = name.substr(6);
    for (char& c : key) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    if (name == "GATUN_CONFIG") {
      if (config_path_.empty()) config_path_ = value;
    } else if (row_index(key) < 0) {
      // Not an error: the environment belongs to the user and may hold variables of other things.
      std::string near = nearest(key);
      for (char& c : near) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
      if (!near.empty()) warnings_.push_back("the variable " + name + " is no setting; did you mean GATUN_" + near + "?");
    } else if (Status status = set(key, value, Source::kEnvironment, name); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status Settings::set(std::string_view key, std::string_view text, Source source, std::string where) {
  int row = row_index(key);
  if (row < 0) {
    std::string near = nearest(key);
    return Status(Code::kInvalidArgument, where + ": unknown setting '" + std::string(key) + "'" +
                                              (near.empty() ? "" : "; the nearest is '" + near + "'"));
  }
  SettingValues values = values_;
  if (!kTable[row].parse(text, &values)) {
    std::string shown(text.substr(0, 80));
    std::string what = source == Source::kFile ? where + ": " + kTable[row].key : where;
    return Status(Code::kInvalidArgument, what + " is '" + shown + "'; it must be " + kTable[row].expected);
  }
  if (source < origins_[static_cast<size_t>(row)].source) return {};  // a stronger source has spoken
  values_ = std::move(values);
  origins_[static_cast<size_t>(row)] = Origin{source, std::string(text), std::move(where)};
  return {};
}

const Settings::Origin& Settings::origin(std::string_view key) const {
  int row = row_index(key);
  GATUN_CHECK(row >= 0);
  return origins_[static_cast<size_t>(row)];
}

}  // namespace gatun
