#include "switch_model/daemon/monitor.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "switch_model/daemon/health.h"
#include "switch_model/daemon/metrics.h"

namespace gatun {
namespace {

constexpr TimeNs kFreshFor = 100 * kMs;    // no more than ten looks a second, however many ask
constexpr TimeNs kPatience = 2 * kSecond;  // a thread that takes longer is stuck, or gets no core
constexpr size_t kTreesSpare = 16;         // of one lane, that may come while we ask

Result<std::unique_ptr<HttpServer>> open_server(const std::string& address) {
  // ":0" is for tests; split_address() takes it for a mistake.
  const bool any_port = address.size() > 2 && address.compare(address.size() - 2, 2, ":0") == 0;
  const std::string host = any_port ? address.substr(0, address.size() - 2) : address;
  Result<std::vector<Endpoint>> endpoints = resolve(host, any_port ? 0 : kDefaultMetricsPort);
  if (!endpoints.ok()) return endpoints.status();
  return HttpServer::make(endpoints->front());
}

}  // namespace

Result<std::unique_ptr<Monitor>> Monitor::make(const Settings& settings, std::vector<Lane*> lanes, const Log* log) {
  const std::string& address = settings.values().metrics;
  std::unique_ptr<Monitor> none;
  if (address.empty()) return none;
  Result<std::unique_ptr<HttpServer>> server = open_server(address);
  if (!server.ok()) {
    const std::string why = "no metrics and health at " + address + ": " + server.status().message() +
                            "; give another address with --metrics HOST:PORT, or --metrics off";
    if (settings.origin("metrics").source != Settings::Source::kDefault) return Status(server.status().code(), why);
    log->warn("%s", why.c_str());
    return none;
  }
  Fd asked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!asked.valid()) return system_error("create an event descriptor", errno);
  if (const char* why = why_no_metrics()) log->info("metrics are off, health is on: %s", why);
  return std::unique_ptr<Monitor>(
      new Monitor(settings.values().stall_warning, std::move(lanes), std::move(asked), std::move(server.value())));
}

Monitor::Monitor(TimeNs stall_limit, std::vector<Lane*> lanes, Fd asked, std::unique_ptr<HttpServer> server)
    : stall_limit_(stall_limit), lanes_(std::move(lanes)), asked_(std::move(asked)), server_(std::move(server)) {}

Monitor::~Monitor() {
  leaving_ = true;
}

Status Monitor::start() {
  return server_->start("gatund-http",
                        [this](std::string_view path, std::string_view query) { return respond(path, query); });
}

void Monitor::answer(ControlFacts facts) {
  uint64_t count = 0;
  (void)!::read(*asked_, &count, sizeof count);
  const std::lock_guard lock(mutex_);
  handed_ = std::move(facts);
  ++answers_;
}

HttpAnswer Monitor::respond(std::string_view path, std::string_view query) {
  if (path != "/metrics" && path != "/health") {
    return {.code = path == "/" ? 200 : 404, .body = "gatund serves /metrics, /health and /health?job=NAME\n"};
  }
  if (path == "/metrics" && why_no_metrics()) {
    return {.code = 501, .body = std::string("no metrics: ") + why_no_metrics() + "\n"};
  }
  if (now_ns() >= fresh_until_) refresh();
  snapshot_.stopping = stopping_;  // at once, however fresh the rest is
  if (path == "/health") return health(snapshot_, query);
  if (metrics_.empty()) metrics_ = metrics_text(snapshot_);
  return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_};
}

void Monitor::refresh() {
  const TimeNs deadline = now_ns() + kPatience;
  std::string silent;
  if (!stopping_ && !ask_control(deadline) && !stopping_) silent = "the control thread";
  std::vector<const Lane::View*> views;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (ask_lane(lanes_[i], deadline)) {
      views.push_back(&lanes_[i]->view());
    } else {
      silent = "lane " + std::to_string(i);
    }
  }
  if (silent.empty()) {
    snapshot_ = make_snapshot(facts_, views, stall_limit_, now_ns());
  }  // else the last that is known; a lane's view is the lane's until it has answered
  snapshot_.silent = silent;
  metrics_.clear();
  fresh_until_ = now_ns() + kFreshFor;
}

bool Monitor::ask_control(TimeNs deadline) {
  uint64_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    before = answers_;
  }
  const uint64_t one = 1;
  (void)!::write(*asked_, &one, sizeof one);
  while (now_ns() < deadline && !leaving_ && !stopping_) {
    {
      const std::lock_guard lock(mutex_);
      if (answers_ != before) {
        facts_ = std::move(handed_);
        return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

bool Monitor::ask_lane(Lane* lane, TimeNs deadline) {
  size_t trees = facts_.counts.trees + kTreesSpare;
  bool asked = !lane->answered();  // an earlier time, and it has not come to it yet
  while (now_ns() < deadline && !leaving_) {
    if (!asked) lane->ask(trees);
    asked = true;
    while (!lane->answered() && now_ns() < deadline && !leaving_) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (!lane->answered()) return false;
    if (lane->view().complete) return true;
    trees *= 2;
    asked = false;
  }
  return false;
}

}  // namespace gatun
