#include "host/tools/info.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "host/base/settings.h"
#include "host/tools/dpdk_facts.h"
#include "host/tools/host_facts.h"
#include "host/tools/paths.h"
#include "host/tools/version.h"

namespace gatun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kConnectTimeoutMs = 1000;

const char* source_name(Settings::Source source) {
  switch (source) {
    case Settings::Source::kFile: return "file";
    case Settings::Source::kEnvironment: return "environment";
    case Settings::Source::kFlag: return "flag";
    case Settings::Source::kDefault: break;
  }
  return "default";
}

Json collect(const Settings& settings) {
  Json json;
  json["version"] = version_text();
  json["program"] = own_path();
  json["build"] = Json{{"type", GATUN_BUILD_TYPE},     {"sanitizer", GATUN_BUILD_SANITIZER},
                       {"transports", {"shm", "udp"}}, {"gatund", find_program("gatund")},
                       {"peers", Json::array()},       {"commands", external_subcommands()}};
  for (const char* transport : {"verbs", "dpdk"}) {
    if (!find_module(std::string("libgatun_") + transport + ".so").empty()) json["build"]["transports"].push_back(transport);
  }
  for (const char* peer : {"gloo", "mpi"}) {
    if (!find_module(std::string("libgatun_perf_") + peer + ".so").empty()) json["build"]["peers"].push_back(peer);
  }
  json["host"] = Json{{"kernel", kernel_release()}, {"cpus", cpu_count()}, {"receive_buffer_limit", receive_buffer_limit()}};
  std::vector<Feature> features = kernel_features();
  features.push_back(nccl_feature());
  for (const Feature& feature : features) {
    json["host"]["features"][feature.name] = Json{{"there", feature.there}, {"detail", feature.detail}};
  }
  json["devices"] = Json::array();
  for (const Device& device : network_devices()) {
    json["devices"].push_back(
        Json{{"name", device.name}, {"up", device.up}, {"mtu", device.mtu}, {"addresses", device.addresses}});
  }
  json["rdma"] = rdma_devices();
  json["dpdk"] = dpdk_devices();
  const std::string& address = settings.values().address;
  const std::string error = connect_within(address, kConnectTimeoutMs).status().message();
  json["switch"] = Json{{"address", address}, {"answers", error.empty()}, {"error", error}};
  json["settings_file"] = settings.file();
  for (const Settings::Row& row : Settings::table()) {
    const Settings::Origin& origin = settings.origin(row.key);
    json["settings"][row.key] =
        Json{{"value", origin.text}, {"source", source_name(origin.source)}, {"where", origin.where}};
  }
  json["warnings"] = settings.warnings();
  return json;
}

std::string joined(const Json& list, const char* none) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ", ") + item.get<std::string>();
  return text.empty() ? none : text;
}

void print_devices(const Json& json) {
  fmt::print("Devices\n");
  for (const Json& device : json["devices"]) {
    fmt::print("  {:<11} {:<4}  mtu {:<5}  {}\n", device["name"].get<std::string>(),
               device["up"].get<bool>() ? "up" : "down", device["mtu"].get<int>(),
               joined(device["addresses"], "no address"));
  }
  for (const auto& [kind, name] : {std::pair("rdma", "RDMA"), std::pair("dpdk", "DPDK")}) {
    for (const Json& line : json[kind]) fmt::print("  {:<11} {}\n", name, line.get<std::string>());
  }
}

void print_text(const Json& json, const Settings& settings) {
  const Json &build = json["build"], &host = json["host"];
  const std::string gatund = build["gatund"];
  fmt::print("Gatun {}\n", json["version"].get<std::string>());
  fmt::print(
      "\nBuild\n  program     {}\n  type        {}{}\n  transports  {}\n  gatund      {}\n  peers       {}\n  commands    "
      "{}\n",
      json["program"].get<std::string>(), build["type"].get<std::string>(),
      build["sanitizer"] == "" ? "" : ", sanitizer " + build["sanitizer"].get<std::string>(),
      joined(build["transports"], ""), gatund.empty() ? "not beside this program nor in PATH" : gatund,
      joined(build["peers"], "none (gatun perf --vs needs Gloo or Open MPI at build time)"),
      joined(build["commands"], "perf, info"));
  fmt::print("\nHost\n  kernel      {}\n  cpus        {}\n  rmem_max    {} bytes of a socket's receive buffer\n",
             host["kernel"].get<std::string>(), host["cpus"].get<int>(), host["receive_buffer_limit"].get<uint64_t>());
  for (const auto& [name, feature] : host["features"].items()) {
    fmt::print("  {:<11} {:<3}  {}\n", name, feature["there"].get<bool>() ? "yes" : "no",
               feature["detail"].get<std::string>());
  }
  fmt::print("\n");
  print_devices(json);
  const Json& daemon = json["switch"];
  fmt::print("\nSwitch\n  {}  {}\n", daemon["address"].get<std::string>(),
             daemon["answers"].get<bool>() ? "answers" : "does not answer: " + daemon["error"].get<std::string>());
  fmt::print("\nSettings (file: {})\n", settings.file().empty() ? "none" : settings.file());
  const std::string table = settings.describe();
  for (size_t start = 0; start < table.size();) {
    const size_t end = table.find('\n', start);
    fmt::print("  {}\n", table.substr(start, end - start));
    start = end + 1;
  }
  for (const Json& warning : json["warnings"]) fmt::print("  note: {}\n", warning.get<std::string>());
}

}  // namespace

int info_main(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest = arguments;
  Settings settings;
  const Status status = settings.load(&rest);
  if (std::any_of(rest.begin(), rest.end(), [](const auto& flag) { return flag == "--help" || flag == "-h"; })) {
    fmt::print("Usage: gatun info [-d] [--json] [SETTINGS]\n\n  -d      devices only\n\n{}", Settings::help());
    return 0;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "gatun info: %s\n", status.message());
    return 2;
  }
  bool as_json = false, only_devices = false;
  for (const std::string& flag : rest) {
    if (flag == "--json") {
      as_json = true;
    } else if (flag == "-d" || flag == "--devices") {
      only_devices = true;
    } else {
      std::fprintf(stderr, "gatun info: unknown flag '%s'; it takes -d, --json and the settings (gatun info --help)\n",
                   flag.c_str());
      return 2;
    }
  }
  const Json json = collect(settings);
  if (as_json) {
    fmt::print("{}\n", json.dump(2));
  } else if (only_devices) {
    print_devices(json);
  } else {
    print_text(json, settings);
  }
  return 0;
}

}  // namespace gatun
