// Python module gatun._gatun: creates groups. Registration, rendezvous and settings are in the Python package.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "host/plugins/torch/ext/group.h"

namespace py = pybind11;

namespace gatun_torch {
namespace {

Group& group_of(const BasePtr& backend) {
  auto* group = dynamic_cast<Group*>(backend.get());
  if (!group) {
    throw c10::TypeError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                         "gatun: this is not a group of backend gatun");
  }
  return *group;
}

// PyTorch's store, as the library sees it: where the ranks meet when there is no switch.
class MeetingPlace {
 public:
  explicit MeetingPlace(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {
    functions_.context = this;
    functions_.set = [](void* self, const char* key, const char* value) {
      return static_cast<MeetingPlace*>(self)->set(key, value);
    };
    functions_.get = [](void* self, const char* key, char* value, size_t size, int64_t timeout_ms) {
      return static_cast<MeetingPlace*>(self)->get(key, value, size, timeout_ms);
    };
  }
  const gatun_store_t* functions() const { return &functions_; }

 private:
  int set(const std::string& key, const std::string& value) noexcept try {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    return 0;
  } catch (...) {
    return 1;
  }
  int get(const std::string& key, char* value, size_t size, int64_t timeout_ms) noexcept try {
    store_->wait({key}, std::chrono::milliseconds(timeout_ms));
    const std::vector<uint8_t> bytes = store_->get(key);
    if (bytes.size() >= size) return 1;
    std::copy(bytes.begin(), bytes.end(), value);
    value[bytes.size()] = 0;
    return 0;
  } catch (...) {
    return 1;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  gatun_store_t functions_ = GATUN_STORE_INIT;
};

gatun_options_t options_from(const std::map<std::string, std::string>& text, const std::map<std::string, int64_t>& numbers) {
  gatun_options_t options = GATUN_OPTIONS_INIT;
  const auto word = [&](const char* key) {
    const auto at = text.find(key);
    return at == text.end() ? nullptr : at->second.c_str();
  };
  const auto number = [&](const char* key) {
    const auto at = numbers.find(key);
    return at == numbers.end() ? int64_t{0} : at->second;
  };
  options.address = word("address");
  options.job = word("job");
  options.transport = word("transport");
  options.trees = static_cast<int>(number("trees"));
  options.window = static_cast<int>(number("window"));
  options.payload_bytes = static_cast<int>(number("payload"));
  options.timeout_ms = number("timeout_ms");
  options.join_timeout_ms = number("join_timeout_ms");
  options.fallback = word("fallback");
  options.detect_ms = number("detect_ms");
  return options;
}

BasePtr create(int rank, int size, const std::string& name, std::chrono::milliseconds timeout,
               const std::map<std::string, std::string>& text, const std::map<std::string, int64_t>& numbers,
               const c10::intrusive_ptr<c10d::Store>& store, BasePtr inner, std::function<BasePtr()> make_device_inner) {
  const py::gil_scoped_release others_run;
  const MeetingPlace place(store);
  gatun_options_t options = options_from(text, numbers);
  options.store = place.functions();
  gatun_comm_t comm = nullptr;
  const int code = gatun_comm_create(&comm, size, rank, &options);
  if (code < 0) {
    Tracker(nullptr, rank, size, name).fail("joining", code, gatun_last_error(nullptr));
  }
  return Group::make(comm, rank, size, {name, timeout, std::move(inner), std::move(make_device_inner)});
}

py::dict stats(const BasePtr& backend) {
  const auto stats = group_of(backend).stats();
  py::dict all;
  all["rank"] = stats.rank;
  all["nranks"] = stats.nranks;
  all["trees"] = stats.trees;
  all["window"] = stats.window;
  all["payload_bytes"] = stats.payload_bytes;
  all["transport"] = std::string(stats.transport);
  all["address"] = std::string(stats.address);
  all["wire_bytes_sent"] = stats.wire_bytes_sent;
  all["wire_bytes_received"] = stats.wire_bytes_received;
  all["packets_sent"] = stats.packets_sent;
  all["packets_received"] = stats.packets_received;
  all["packets_resent"] = stats.packets_resent;
  all["packets_dropped"] = stats.packets_dropped;
  all["packets_marked"] = stats.packets_marked;
  all["operations"] = stats.operations;
  all["ring_operations"] = stats.ring_operations;
  all["ring_bytes"] = stats.ring_bytes;
  all["failovers"] = stats.failovers;
  all["why"] = std::string(stats.why);
  return all;
}

}  // namespace
}  // namespace gatun_torch

PYBIND11_MODULE(_gatun, m) {
  using namespace gatun_torch;
  m.attr("torch_version") = TORCH_VERSION;
  m.def("create", &create, py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("timeout"), py::arg("text"),
        py::arg("numbers"), py::arg("store"), py::arg("inner"), py::arg("make_device_inner"));
  m.def("stats", &stats, py::arg("backend"));
  m.def("leave_all", &leave_all);
}
