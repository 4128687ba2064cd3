#include "host/tools/doctor/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "host/base/placement.h"
#include "host/tools/doctor/transports.h"
#include "host/tools/host_facts.h"
#include "host/tools/settings_flags.h"
#include "host/tools/version.h"

namespace gatun {
namespace {

// How many ranks a launcher has started on this host, by what it tells them.
constexpr const char* kLocalRanks[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};

void check_cores(const SettingValues& settings, Section* section) {
  int ranks = 0;
  for (const char* name : kLocalRanks) {
    if (const char* text = std::getenv(name); text != nullptr && ranks == 0) ranks = std::atoi(text);
  }
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (ranks > cores) {
    const bool spins = settings.busy_poll > 0;
    section->warn("cores",
                  fmt::format("{} ranks on {} cores wait for each other{}", ranks, cores,
                              spins ? ", and with busy_poll each takes a core from the others meanwhile" : ""),
                  spins ? "GATUN_BUSY_POLL=0" : "start no more ranks on a host than it has cores");
  } else {
    section->ok("cores", fmt::format("{} of {} for this process", cpu_count(), cores));
  }
}

Section host_section(const Settings& settings, const Visit& visit) {
  Section section{.name = "host", .needed = true};
  for (const std::string& warning : settings.warnings()) section.warn("settings", warning, "correct or remove it");
  check_cores(settings.values(), &section);
  visit.host.clock(&section);
  return section;
}

bool wanted(const std::string& transport, const char* name) {
  return transport == "auto" || transport == name;
}

Sections diagnose(const Settings& settings) {
  const SettingValues& values = settings.values();
  Section control{.name = "switch", .needed = true};
  const std::string job = fmt::format("{}-doctor-{}", values.job.substr(0, 80), ::getpid());
  const std::string answers = check_control(values, job + "-hello", &control);
  const Visit visit{.settings = values,
                    .host = HostView(),
                    .job = job,
                    .cores = allowed_cores(),
                    .route = find_route(answers.empty() ? values.address : answers),
                    .switch_lives = !answers.empty()};
  Sections sections = {host_section(settings, visit), control};
  const auto add = [&](const char* name, Section (*section)(const Visit&)) {
    if (wanted(values.transport, name)) sections.push_back(section(visit));
  };
  add("shm", shm_section);
  add("udp", udp_section);
  add("verbs", verbs_section);
  add("dpdk", dpdk_section);
  sections.push_back(fallback_section(visit));

  // What a job would take: auto prefers shm, then a device of DPDK.
  std::string chosen = values.transport;
  if (chosen == "auto") {
    const bool loopback = visit.route.ok() && visit.route.value().peer.loopback();
    const auto shm = std::find_if(sections.begin(), sections.end(), [](const Section& s) { return s.name == "shm"; });
    const bool shares = visit.switch_lives ? shm->proven : loopback;
    chosen = shares ? "shm" : values.device.empty() ? "udp" : "dpdk";
  }
  for (Section& section : sections) section.needed |= section.name == chosen;
  sort_findings(&sections);
  return sections;
}

}  // namespace

int doctor_main(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = given;
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::printf(
        "Usage: gatun doctor [--json] [SETTINGS]\n\nWhat is missing on this host and the path to the switch, and what mends "
        "it. --transport T looks at\none transport only. The exit code is 0 when nothing is missing that a job with these "
        "settings needs.\n\n%s",
        Settings::help().c_str());
    return 0;
  }
  Settings settings;
  if (const Status status = take_setting_flags(&arguments, &settings); !status.ok()) {
    std::fprintf(stderr, "gatun doctor: %s\n", status.message());
    return 2;
  }
  const auto json = std::find(arguments.begin(), arguments.end(), "--json");
  const bool as_json_wanted = json != arguments.end();
  if (as_json_wanted) arguments.erase(json);
  if (!arguments.empty()) {
    std::fprintf(stderr, "gatun doctor: unknown argument '%s'; it takes --json and the settings (gatun doctor --help)\n",
                 arguments[0].c_str());
    return 2;
  }
  setenv("GATUN_LOG", "error", 0);
  const Sections sections = diagnose(settings);
  if (as_json_wanted) {
    nlohmann::ordered_json all = as_json(sections);
    all["version"] = version_text();
    all["address"] = settings.values().address;
    all["transport"] = settings.values().transport;
    fmt::print("{}\n", all.dump(2));
  } else {
    fmt::print("{}{}\n", as_text(sections), summary(sections));
  }
  return problems(sections) == 0 ? 0 : 1;
}

}  // namespace gatun
