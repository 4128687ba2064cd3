#include "host/tools/doctor/path_checks.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <vector>

namespace gatun {
namespace {

constexpr int64_t kPatienceMs = 5000, kSearchPatienceMs = 3000;
constexpr uint32_t kStep = 64;    // of payloads
constexpr uint32_t kAtOnce = 24;  // jobs side by side; a gatund takes 64 by default
constexpr int kCongested = 3;     // RFC 3168: the two bits that a router sets

// The library's sockets are this process's. Its UDP sockets are connected, and what they send from now on is marked.
void mark_sockets() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    const int fd = std::atoi(entry->path().filename().c_str());
    int type = 0;
    socklen_t size = sizeof type;
    sockaddr_storage peer{};
    socklen_t peer_size = sizeof peer;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_DGRAM) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
    const bool six = peer.ss_family == AF_INET6;
    ::setsockopt(fd, six ? int{IPPROTO_IPV6} : int{IPPROTO_IP}, six ? IPV6_TCLASS : IP_TOS, &kCongested, sizeof kCongested);
  }
}

// One job by this transport and no other way.
Trial by(const std::string& transport, const std::string& job) {
  return {.job = job + "-" + transport, .transport = transport, .fallback = "off", .patience_ms = kPatienceMs};
}

constexpr const char* kKeepMarks =
    "routers, tunnels and firewalls between must leave the ECN bits of the IP header alone (tunnels: RFC 6040)";

void nothing_passes(const Outcome& outcome, const Route& route, Section* section) {
  const std::string fix = fmt::format(
      "on {0}: iptables -I INPUT -p udp --dport {1} -j ACCEPT; here: iptables -I INPUT -p udp --sport {1} -j ACCEPT "
      "(a port per lane, {1} and up)",
      route.peer.ip(), route.peer.port());
  section->missing("data path", outcome.error, outcome.code == GATUN_SWITCH_LOST ? fix : "");
}

}  // namespace

uint32_t largest_passing(uint32_t most, const std::function<bool(uint32_t bytes)>& passes) {
  uint32_t good = 0, bad = most / kStep + 1;  // in steps
  while (bad - good > 1) {
    std::vector<uint32_t> steps;
    const uint32_t count = std::min(kAtOnce, bad - good - 1);
    for (uint32_t i = 1; i <= count; ++i)
      steps.push_back(good + static_cast<uint32_t>(uint64_t{bad - good} * i / (count + 1)));
    std::vector<std::future<bool>> answers;
    for (const uint32_t step : steps) answers.push_back(std::async(std::launch::async, passes, step * kStep));
    for (size_t i = 0; i < steps.size(); ++i) {
      if (answers[i].get()) {
        good = std::max(good, steps[i]);
      } else {
        bad = std::min(bad, steps[i]);
      }
    }
    if (bad <= good) bad = good + 1;  // they answer differently from one time to the next
  }
  return good * kStep;
}

void check_udp_path(const std::string& job, const Route& route, Section* section) {
  Trial trial = by("udp", job);
  trial.joined = mark_sockets;
  Outcome whole = try_job(trial);
  const bool stuck = whole.code == GATUN_TIMEOUT;  // behind the probes, which carry no marks
  if (stuck) {
    trial.joined = nullptr;
    whole = try_job(trial);
  }
  const std::string way = fmt::format("{} to {}", route.local.ip(), route.peer.text());
  if (whole.code == GATUN_SUCCESS) {
    section->proven = true;
    section->ok("data path",
                fmt::format("{}: packets of {} bytes pass both ways", way, route.packet_bytes(whole.stats.payload_bytes)));
    if (stuck) return section->missing("ECN", "packets with a mark of congestion are dropped on the way", kKeepMarks);
    if (whole.stats.packets_marked > 0) return section->ok("ECN", "a mark set here comes back from the switch");
    return section->warn("ECN", "marks are cleared on the way to the switch: congestion shows only when packets are lost",
                         kKeepMarks);
  }
  const auto passes = [&](uint32_t bytes) {
    Trial part = by("udp", fmt::format("{}-{}", job, bytes));
    part.payload_bytes = static_cast<int>(bytes);
    part.patience_ms = kSearchPatienceMs;
    return try_job(part).code == GATUN_SUCCESS;
  };
  if (whole.code == GATUN_REFUSED || whole.code == GATUN_TIMEOUT || !passes(kStep))
    return nothing_passes(whole, route, section);
  const uint32_t bytes = largest_passing(route.payload_bytes, passes);
  if (bytes == route.payload_bytes) {
    return section->missing("data path", "what failed once passed the second time: " + whole.error, "gatun doctor");
  }
  section->missing(
      "MTU",
      fmt::format("{}: packets of {} bytes pass, of {} do not, and {} (MTU {}) sends those", way, route.packet_bytes(bytes),
                  route.packet_bytes(route.payload_bytes), route.interface.name, route.interface.mtu),
      fmt::format("ip link set {} mtu {} (or raise it on what lies between), or GATUN_PAYLOAD={} on all ranks",
                  route.interface.name, route.packet_bytes(bytes), bytes));
}

void check_path(const std::string& job, const std::string& transport, const char* if_refused, Section* section) {
  const Outcome outcome = try_job(by(transport, job));
  section->proven = outcome.code == GATUN_SUCCESS;
  if (outcome.code == GATUN_REFUSED) return section->missing("switch", outcome.error, if_refused);
  if (!section->proven) return section->missing("data path", outcome.error, "");
  section->ok("data path", fmt::format("packets with {} bytes of payload pass both ways", outcome.stats.payload_bytes));
}

}  // namespace gatun
