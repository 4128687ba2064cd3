// How `gatun doctor` orders, counts and words what it found.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "host/tools/doctor/findings.h"

namespace gatun {
namespace {

Sections some() {
  Section host{.name = "host", .needed = true};
  host.ok("clock", "tsc");
  host.warn("cores", "few", "buy more");
  Section udp{.name = "udp", .transport = true, .needed = true, .proven = true};
  udp.ok("kernel", "new");
  Section dpdk{.name = "dpdk", .transport = true};
  dpdk.ok("module", "DPDK");
  dpdk.missing("device", "none", "GATUN_DEVICE=x");
  dpdk.warn("permission", "no", "sudo");
  dpdk.missing("huge pages", "none", "sysctl");
  return {host, udp, dpdk};
}

}  // namespace

TEST_CASE("sort_findings__worst_first_else_as_found", "[doctor]") {
  Sections sections = some();
  sort_findings(&sections);
  std::vector<std::string> names;
  for (const Finding& finding : sections[2].findings) names.push_back(finding.name);
  CHECK(names == std::vector<std::string>{"device", "huge pages", "permission", "module"});
}

TEST_CASE("problems__only_where_it_is_needed", "[doctor]") {
  Sections sections = some();
  CHECK(problems(sections) == 0);
  sections[2].needed = true;
  CHECK(problems(sections) == 2);
}

TEST_CASE("summary__sentence", "[doctor]") {
  Sections sections = some();
  CHECK(summary(sections) == "no problems, 2 warnings: udp is ready; dpdk needs device and huge pages");
  sections[1].proven = false;
  CHECK(summary(sections) == "no problems, 2 warnings: udp waits for the switch; dpdk needs device and huge pages");
  sections[1].missing("MTU", "small", "larger");
  sections.pop_back();
  CHECK(summary(sections) == "1 problem, 1 warning: udp needs MTU");
  Section shm{.name = "shm", .transport = true, .proven = true};
  sections[1] = Section{.name = "udp", .transport = true, .proven = true};
  sections.push_back(shm);
  CHECK(summary(sections) == "no problems, 1 warning: udp and shm are ready");
}

TEST_CASE("as_text__level_name_text_fix", "[doctor]") {
  CHECK(as_text({some()[0]}) ==
        "host\n"
        "  ok       clock          tsc\n"
        "  warn     cores          few\n"
        "                          fix: buy more\n"
        "\n");
}

TEST_CASE("as_json__ready_only_when_proven_and_nothing_is_missing", "[doctor]") {
  Sections sections = some();
  nlohmann::ordered_json json = as_json(sections);
  CHECK(json["problems"] == 0);
  CHECK(json["summary"] == summary(sections));
  CHECK(json["sections"][1]["ready"] == true);
  CHECK(json["sections"][2]["ready"] == false);
  CHECK(json["sections"][2]["findings"][1]["level"] == "missing");
  CHECK(json["sections"][2]["findings"][1]["fix"] == "GATUN_DEVICE=x");
  sections[1].missing("MTU", "small", "larger");
  CHECK(as_json(sections)["sections"][1]["ready"] == false);
}

}  // namespace gatun
