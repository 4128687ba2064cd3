#include "host/lib/c_api_options.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "host/lib/c_api.h"

namespace gatun {
namespace {

// Copies the part of a caller's struct that both sides know. What a newer caller has set beyond that cannot be honoured.
// Nothing allocates unless something is wrong.
template <typename T>
Status read_struct(const char* function, const char* what, const T* from, T* to) {
  size_t size;
  std::memcpy(&size, from, sizeof size);
  if (size < sizeof size) {
    return {Code::kInvalidArgument,
            std::string(function) + ": " + what + "->size is " + std::to_string(size) + "; set it, or use the _INIT macro"};
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return {Code::kUnsupported, std::string(function) + ": " + what +
                                    " sets a field that this version of the library does not know; install a newer one"};
  }
  std::memcpy(to, from, std::min(size, sizeof(T)));
  to->size = sizeof(T);
  return {};
}

class CallerStore final : public Store {
 public:
  explicit CallerStore(const gatun_store_t& functions) : functions_(functions) {}

  Status set(const std::string& key, const std::string& value) override {
    if (functions_.set(functions_.context, key.c_str(), value.c_str()) == 0) return {};
    return {Code::kSystem, "the caller's store did not take key '" + key + "'"};
  }
  Result<std::string> get(const std::string& key, TimeNs deadline) override {
    char value[kValueBytes] = "";
    const TimeNs left = std::max<TimeNs>(deadline - now_ns(), kMs);
    if (functions_.get(functions_.context, key.c_str(), value, sizeof value, left / kMs) == 0) {
      value[sizeof value - 1] = 0;
      return std::string(value);
    }
    return Status(Code::kTimeout, "the caller's store has no key '" + key + "'");
  }

 private:
  static constexpr size_t kValueBytes = 1024;  // a card has at most 512
  const gatun_store_t functions_;
};

struct OptionSetter {
  Settings* settings;
  Status status;

  void set(const char* key, const std::string& text) {
    if (status.ok()) status = settings->set(key, text, Settings::Source::kFlag, std::string("gatun_options_t.") + key);
  }
  void set(const char* key, const char* text) {
    if (text) set(key, std::string(text));
  }
  void set(const char* key, int value) {
    if (value != 0) set(key, std::to_string(value));
  }
  void set_ms(const char* key, int64_t value) {
    if (value != 0) set(key, std::to_string(value) + "ms");
  }
};

}  // namespace

Result<SettingValues> load_settings(const gatun_options_t* options, std::vector<std::string>* warnings,
                                    std::unique_ptr<Store>* store) {
  Settings settings;
  if (Status status = settings.load(nullptr); !status.ok()) return status;
  *warnings = settings.warnings();
  if (options) {
    gatun_options_t known = GATUN_OPTIONS_INIT;
    if (Status status = read_struct("gatun_comm_create", "options", options, &known); !status.ok()) return status;
    OptionSetter setter{&settings, {}};
    setter.set("address", known.address);
    setter.set("job", known.job);
    setter.set("transport", known.transport);
    setter.set("trees", known.trees);
    setter.set("window", known.window);
    setter.set("payload", known.payload_bytes);
    setter.set_ms("timeout", known.timeout_ms);
    setter.set_ms("join_timeout", known.join_timeout_ms);
    setter.set("fallback", known.fallback);
    setter.set("rendezvous", known.rendezvous);
    setter.set_ms("detect", known.detect_ms);
    if (!setter.status.ok()) return setter.status;
    if (known.store) {
      gatun_store_t functions = GATUN_STORE_INIT;
      if (Status status = read_struct("gatun_comm_create", "options->store", known.store, &functions); !status.ok())
        return status;
      if (!functions.set || !functions.get) {
        return Status(Code::kInvalidArgument, "gatun_comm_create: options->store needs both set and get");
      }
      *store = std::make_unique<CallerStore>(functions);
    }
  }
  return settings.values();
}

Status read_call(const char* function, const gatun_call_t* call, Lane::Call* out, uint64_t* tag) {
  if (!call) return {};
  gatun_call_t known = GATUN_CALL_INIT;
  if (Status status = read_struct(function, "call", call, &known); !status.ok()) return status;
  if (known.timeout_ms < 0) {
    return {Code::kInvalidArgument, std::string(function) + ": call->timeout_ms is " + std::to_string(known.timeout_ms) +
                                        "; it must be positive, or 0 for the communicator's"};
  }
  *tag = known.tag;
  out->timeout = std::min<int64_t>(known.timeout_ms, kNever / kMs / 2) * kMs;
  out->done = known.done;
  out->context = known.context;
  return {};
}

Status write_stats(const Communicator::Facts& facts, const Lane::Stats& stats, gatun_stats_t* out) {
  if (!out) return {Code::kInvalidArgument, "gatun_comm_stats: stats is NULL"};
  if (out->size < sizeof(size_t)) {
    return {Code::kInvalidArgument,
            "gatun_comm_stats: stats->size is " + std::to_string(out->size) + "; set it to sizeof(gatun_stats_t)"};
  }
  gatun_stats_t full{};
  full.rank = static_cast<int>(facts.rank);
  full.nranks = static_cast<int>(facts.ranks);
  full.trees = static_cast<int>(facts.trees);
  full.window = static_cast<int>(facts.window);
  full.payload_bytes = facts.payload_bytes;
  std::snprintf(full.transport, sizeof full.transport, "%s", facts.transport.c_str());
  std::snprintf(full.address, sizeof full.address, "%s", facts.address.c_str());
  full.wire_bytes_sent = stats.transport.bytes_sent;
  full.wire_bytes_received = stats.transport.bytes_received;
  full.packets_sent = stats.transport.packets_sent;
  full.packets_received = stats.transport.packets_received;
  full.packets_resent = stats.resent;
  full.packets_dropped = stats.dropped + stats.transport.dropped_runt + stats.transport.dropped_no_buffer;
  full.packets_marked = stats.marked;
  full.operations = stats.operations;
  full.ring_operations = stats.ring_operations;
  full.ring_bytes = stats.ring_bytes;
  full.failovers = stats.failovers;
  full.payload_bytes_copied = stats.copied_bytes;
  std::snprintf(full.why, sizeof full.why, "%s", facts.why.c_str());
  full.size = out->size;
  std::memcpy(out, &full, std::min(out->size, sizeof full));
  return {};
}

}  // namespace gatun
