#include "host/tools/doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gatun {
namespace {

constexpr const char* kLevels[] = {"ok", "warn", "missing"};

const char* name(Level level) {
  return kLevels[static_cast<size_t>(level)];
}

std::string counted(int number, const char* thing) {
  return fmt::format("{} {}{}", number == 0 ? "no" : std::to_string(number), thing, number == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    text += i == 0 ? list[i] : (i + 1 == list.size() ? " and " : ", ") + list[i];
  }
  return text;
}

}  // namespace

int Section::count(Level level) const {
  return static_cast<int>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.level == level; }));
}

void sort_findings(Sections* sections) {
  for (Section& section : *sections) {
    std::stable_sort(section.findings.begin(), section.findings.end(),
                     [](const Finding& a, const Finding& b) { return a.level > b.level; });
  }
}

int problems(const Sections& sections) {
  int count = 0;
  for (const Section& section : sections) count += section.needed ? section.count(Level::kMissing) : 0;
  return count;
}

std::string summary(const Sections& sections) {
  int warnings = 0;
  std::vector<std::string> ready, waiting, parts;
  for (const Section& section : sections) {
    warnings += section.count(Level::kWarn);
    if (!section.transport) continue;
    std::vector<std::string> needs;
    for (const Finding& finding : section.findings) {
      if (finding.level == Level::kMissing) needs.push_back(finding.name);
    }
    if (needs.empty()) {
      (section.proven ? ready : waiting).push_back(section.name);
    } else {
      parts.push_back(section.name + " needs " + joined(needs));
    }
  }
  const auto put_first = [&](const std::vector<std::string>& names, const char* one, const char* more) {
    if (!names.empty()) parts.insert(parts.begin(), joined(names) + (names.size() == 1 ? one : more));
  };
  put_first(waiting, " waits for the switch", " wait for the switch");
  put_first(ready, " is ready", " are ready");
  return fmt::format("{}, {}: {}", counted(problems(sections), "problem"), counted(warnings, "warning"),
                     fmt::join(parts, "; "));
}

std::string as_text(const Sections& sections) {
  std::string text;
  for (const Section& section : sections) {
    text += section.name + "\n";
    for (const Finding& finding : section.findings) {
      text += fmt::format("  {:<8} {:<14} {}\n", name(finding.level), finding.name, finding.text);
      if (!finding.fix.empty()) text += fmt::format("  {:<8} {:<14} fix: {}\n", "", "", finding.fix);
    }
    text += "\n";
  }
  return text;
}

nlohmann::ordered_json as_json(const Sections& sections) {
  using Json = nlohmann::ordered_json;
  Json json = {{"problems", problems(sections)}, {"summary", summary(sections)}, {"sections", Json::array()}};
  for (const Section& section : sections) {
    Json findings = Json::array();
    for (const Finding& finding : section.findings) {
      findings.push_back(
          {{"level", name(finding.level)}, {"name", finding.name}, {"text", finding.text}, {"fix", finding.fix}});
    }
    const bool ready = section.proven && section.count(Level::kMissing) == 0;
    json["sections"].push_back(
        {{"name", section.name}, {"needed", section.needed}, {"ready", ready}, {"findings", findings}});
  }
  return json;
}

}  // namespace gatun
