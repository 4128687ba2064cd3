#include "switch_model/daemon/health.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace gatun {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kStates[] = {"joining", "running", "stalled"};  // by Snapshot::State

Json describe(const Snapshot::Job& job) {
  const bool stalled = job.state == Snapshot::kStalled;
  Json json = {{"job", job.name}, {"ranks", job.ranks}, {"joined", job.joined}, {"state", kStates[job.state]}};
  json["operations"] = job.stats.operations;
  json["stalled_ranks"] = stalled ? job.missing : std::vector<uint32_t>{};
  json["stalled_for_ms"] = stalled ? job.waited / kMs : 0;
  if (stalled) json["operation"] = job.operation;
  return json;
}

HttpAnswer answer(int code, const Json& json) {
  return {.code = code, .type = "application/json", .body = json.dump() + "\n"};
}

std::string decode_url(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

HttpAnswer health(const Snapshot& snapshot, std::string_view query) {
  if (!query.empty() && query.substr(0, 4) != "job=") {
    return answer(400, {{"error", "the query may be job=NAME and nothing else"}});
  }
  if (!query.empty()) {
    const std::string name = valid_utf8(decode_url(query.substr(4)));
    const auto same = [&](const Snapshot::Job& job) { return job.name == name; };
    const auto job = std::find_if(snapshot.jobs.begin(), snapshot.jobs.end(), same);
    if (job == snapshot.jobs.end()) return answer(404, {{"error", "there is no job '" + name + "'"}});
    return answer(job->state == Snapshot::kStalled ? 503 : 200, describe(*job));
  }
  const bool stalled = std::any_of(snapshot.jobs.begin(), snapshot.jobs.end(),
                                   [](const Snapshot::Job& job) { return job.state == Snapshot::kStalled; });
  Json json = {{"status", stalled ? "stalled" : "ok"}};
  if (snapshot.stopping) json["status"] = "stopping";
  if (!snapshot.silent.empty()) {
    json["status"] = "unresponsive";
    json["silent"] = snapshot.silent;
  }
  json["jobs"] = Json::array();
  for (const Snapshot::Job& job : snapshot.jobs) json["jobs"].push_back(describe(job));
  return answer(snapshot.silent.empty() ? 200 : 503, json);
}

}  // namespace gatun
