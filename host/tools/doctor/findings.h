// Findings: what `gatun doctor` says of a host and its paths. A section is one transport, or something that all of them
// stand on; in it the worst comes first, and what is equally bad in the order in which it was found.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gatun {

enum class Level : uint8_t { kOk, kWarn, kMissing };

struct Finding {
  Level level = Level::kOk;
  std::string name;  // "huge pages"
  std::string text;  // the fact, and what it means
  std::string fix;   // a command, or what else to do; "" if there is nothing to mend, or the text says how
};

struct Section {
  std::string name;
  bool transport = false;
  bool needed = false;  // by the settings: what is missing here is a problem
  bool proven = false;  // a job went this way
  std::vector<Finding> findings;

  void ok(std::string fact, std::string text) { findings.push_back({Level::kOk, std::move(fact), std::move(text), ""}); }
  void warn(std::string fact, std::string text, std::string fix) {
    findings.push_back({Level::kWarn, std::move(fact), std::move(text), std::move(fix)});
  }
  void missing(std::string fact, std::string text, std::string fix) {
    findings.push_back({Level::kMissing, std::move(fact), std::move(text), std::move(fix)});
  }
  int count(Level level) const;
};

using Sections = std::vector<Section>;

void sort_findings(Sections* sections);
int problems(const Sections& sections);  // missing where it is needed
// "2 problems, 1 warning: udp is ready; verbs needs devices; dpdk waits for the switch".
std::string summary(const Sections& sections);
std::string as_text(const Sections& sections);  // without the summary
nlohmann::ordered_json as_json(const Sections& sections);

}  // namespace gatun
