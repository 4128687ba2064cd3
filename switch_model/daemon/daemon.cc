#include "switch_model/daemon/daemon.h"

#include <dirent.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "host/transport/udp_socket.h"
#include "protocols/worker.h"

namespace gatun {
namespace {

constexpr uint32_t kUdpBuffersMin = 64;
constexpr uint32_t kPeersMax = 1024;         // of one UDP socket
constexpr uint32_t kDpdkBufferBytes = 2560;  // about, with frames of 1500 bytes
constexpr uint32_t kDpdkBuffersMax = 16384;  // made at the start, unlike a socket's
constexpr uint32_t kShmPayloadBytesMax = 1 << 20;
constexpr uint32_t kShmBuffers = 2 * kBurst;  // probes that came in one burst
constexpr uint32_t kLinksMax = 4096;          // shm, of one lane
constexpr TimeNs kStopWait = 1 * kSecond;     // for the jobs to take the farewell
constexpr TimeNs kIdleWake = 5 * kSecond;
constexpr uint32_t kLinesPerSecond = 50;  // of log that peers can cause

uint64_t link_bytes(uint32_t trees, uint32_t window, uint32_t payload_bytes) {
  return ShmShape::make(trees, window, payload_bytes).region_bytes();
}

int open_descriptors() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return -1;
  int count = -1;  // its own
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

}  // namespace

Daemon::Daemon(const SettingValues& settings, const Log* log) : settings_(settings), log_(log) {}

Result<std::unique_ptr<Daemon>> Daemon::make(const Settings& settings, const Log* log) {
  std::unique_ptr<Daemon> daemon(new Daemon(settings.values(), log));
  if (Status status = daemon->open(settings); !status.ok()) return status;
  return daemon;
}

// The setting memory is for the jobs' arenas and shared regions; received UDP packets that wait for others may take as much
// again, and each lane's shm hub a few copies of probes.
Status Daemon::open(const Settings& settings) {
  if (Status status = open_device(); !status.ok()) return status;
  with_udp_ = !device_ && (settings_.transport == "auto" || settings_.transport == "udp");
  with_shm_ = settings_.transport == "auto" || settings_.transport == "shm";
  const UdpOptions udp{
      .buffers = static_cast<uint32_t>(std::min<uint64_t>(settings_.memory_bytes / kUdpBufferBytes, 1 << 20)),
      .peers_max = kPeersMax,
      .busy_poll_us = static_cast<int>(settings_.busy_poll / kUs)};
  Result<Sockets> sockets = open_sockets(settings_, with_udp_, udp, kUdpBuffersMin);
  if (!sockets.ok()) return sockets.status();
  port_ = sockets->port;
  for (const Endpoint& endpoint : sockets->endpoints)
    addresses_text_ += (addresses_text_.empty() ? "" : ", ") + endpoint.text();

  Membership::Config config;
  config.trees_max = kTreesMax;
  config.keepalive = settings_.keepalive;
  config.random = random_u64;
  config.facts.lanes = settings_.lanes;
  server_ = std::make_unique<ControlServer>(log_);
  if (Status status = server_->open(std::move(sockets->listeners)); !status.ok()) return status;
  if (with_shm_) {
    auto door = ShmDoor::make("");
    if (door.ok()) {
      door_ = std::move(door.value());
      config.facts.host_identity = host_identity();
      if (Status status = server_->watch(door_->wait_fd()); !status.ok()) return status;
    } else if (settings_.transport == "shm") {
      return door.status();
    } else {
      log_->warn("no shared memory for workers on this host: %s", door.status().message());
    }
  }
  if (Status status = open_verbs_devices(&config.facts); !status.ok()) return status;
  if (Status status = open_lanes(&sockets.value(), udp.buffers, &config.facts); !status.ok()) return status;

  if (settings_.transport == "auto") log_->info("%s", why_auto(config.facts).c_str());

  std::vector<Lane*> lanes;
  for (const auto& lane : lanes_) lanes.push_back(lane.get());
  jobs_ = std::make_unique<Jobs>(JobTable::Config{.memory_bytes = settings_.memory_bytes,
                                                  .jobs_max = settings_.jobs,
                                                  .lanes = settings_.lanes,
                                                  .trees_max = settings_.jobs * kTreesMax,
                                                  .packets_max = config.facts.udp_buffers,
                                                  .lease = settings_.keepalive,
                                                  .link_bytes = link_bytes},
                                 Jobs::Place{port_, device_ ? device_->ip() : ""}, door_.get(), devices_, lanes);
  auto monitor = Monitor::make(settings, lanes, log_);
  if (!monitor.ok()) return monitor.status();
  monitor_ = std::move(monitor.value());
  membership_ = std::make_unique<Membership>(std::move(config));
  server_->serve(membership_.get());
  for (const auto& lane : lanes_) {
    if (Status status = lane->start(); !status.ok()) return status;
  }
  if (!monitor_) return {};
  if (Status status = server_->watch(monitor_->wait_fd()); !status.ok()) return status;
  return monitor_->start();
}

// auto serves by RDMA too where there is any; verbs must.
Status Daemon::open_verbs_devices(SwitchFacts* facts) {
  if (settings_.transport != "auto" && settings_.transport != "verbs") {
    facts->why_no_verbs = "its setting transport is " + settings_.transport;
    return {};
  }
  Result<VerbsDevices> devices = open_verbs();
  facts->verbs = devices.ok();
  if (devices.ok()) {
    devices_ = std::move(devices.value());
    return {};
  }
  if (settings_.transport == "verbs") return devices.status();
  facts->why_no_verbs = devices.status().message();
  return {};
}

// With a device its network carries the data, of workers with kernel sockets, too.
Status Daemon::open_device() {
  const auto buffers = static_cast<uint32_t>(std::min<uint64_t>(settings_.memory_bytes / kDpdkBufferBytes, kDpdkBuffersMax));
  std::string why;
  auto device = wanted_dpdk(settings_, {.lanes = settings_.lanes, .buffers = buffers}, &why);
  if (!device.ok()) return device.status();
  device_ = std::move(device.value());
  if (!why.empty()) log_->warn("%s; data goes by kernel sockets", why.c_str());
  if (device_ && !device_->warning().empty()) log_->warn("%s", device_->warning().c_str());
  return {};
}

// The choices of auto, each with its reason.
std::string Daemon::why_auto(const SwitchFacts& facts) const {
  const std::string no_device = settings_.device.empty() ? "the setting device is none" : "its device cannot be opened";
  return std::string("transport auto: ranks ") + (door_ ? "on this host go by shared memory, " : "") +
         (facts.verbs ? "those with transport verbs by RDMA" : "none by RDMA (" + facts.why_no_verbs + ")") +
         ", others by " + (device_ ? "dpdk, since the setting device names one" : "kernel sockets, since " + no_device);
}

Result<std::vector<std::unique_ptr<Transport>>> Daemon::hubs_of_lane(uint32_t lane, Sockets* sockets) {
  std::vector<std::unique_ptr<Transport>> hubs;
  if (!sockets->hubs.empty()) hubs = std::move(sockets->hubs[lane]);
  if (!device_) return hubs;
  const uint32_t buffers = device_->buffers() / settings_.lanes;
  auto hub = device_->make_hub(static_cast<uint16_t>(port_ + lane), buffers, kPeersMax);
  if (!hub.ok()) return hub.status();
  hubs.push_back(std::move(hub.value()));
  return hubs;
}

Status Daemon::open_lanes(Sockets* sockets, uint32_t udp_buffers, SwitchFacts* facts) {
  const auto least = [](uint32_t a, uint32_t b) { return a == 0 ? b : std::min(a, b); };
  for (uint32_t index = 0; index < settings_.lanes; ++index) {
    auto hubs = hubs_of_lane(index, sockets);
    if (!hubs.ok()) return hubs.status();
    for (const auto& hub : hubs.value()) {
      const TransportCaps caps = hub->caps();
      facts->udp_payload_bytes = least(facts->udp_payload_bytes, caps.payload_bytes_max);
      facts->udp_receive_bytes = least(facts->udp_receive_bytes, caps.receive_bytes);
      facts->udp_buffers = least(facts->udp_buffers, caps.buffers > 0 ? caps.buffers : udp_buffers);
    }
    std::unique_ptr<ShmHub> shm;
    if (door_) {
      auto hub = ShmHub::make({.links_max = std::min(settings_.jobs * kRanksMax, kLinksMax),
                               .payload_bytes_max = kShmPayloadBytesMax,
                               .buffers = kShmBuffers});
      if (!hub.ok()) return hub.status();
      shm = std::move(hub.value());
    }
    std::vector<std::unique_ptr<VerbsHub>> verbs;
    for (const auto& device : devices_) {
      auto hub = device->make_hub({.links_max = std::min(settings_.jobs * kRanksMax, kLinksMax),
                                   .payload_bytes_max = kShmPayloadBytesMax,
                                   .buffers = kShmBuffers});
      if (!hub.ok()) return hub.status();
      verbs.push_back(std::move(hub.value()));
    }
    const Lane::Options options{
        .index = index, .trees_max = settings_.jobs * kTreesMax, .peers_max = kPeersMax, .busy_poll = settings_.busy_poll};
    auto lane = Lane::make(options, std::move(hubs.value()), std::move(shm), std::move(verbs));
    if (!lane.ok()) return lane.status();
    lanes_.push_back(std::move(lane.value()));
  }
  return {};
}

std::string Daemon::describe() const {
  std::string ways;
  for (const auto& [there, way] : {std::pair(device_ != nullptr, "dpdk on " + (device_ ? device_->text() : "")),
                                   {with_udp_, "udp"},
                                   {door_ != nullptr, "shared memory"},
                                   {!devices_.empty(), "RDMA"}}) {
    if (there) ways += (ways.empty() ? "" : " and ") + way;
  }
  const std::string lane_count = std::to_string(settings_.lanes) + (settings_.lanes == 1 ? " lane" : " lanes");
  return "serves " + addresses_text_ + " (control tcp; data " + ways + "), " + lane_count + ", at most " +
         std::to_string(settings_.jobs) + " jobs and " + format_bytes(settings_.memory_bytes) + " of memory for them" +
         (with_udp_ || device_ ? " and as much for packets" : "") +
         (monitor_ ? "; metrics and health at " + monitor_->url() : "");
}

Status Daemon::run(int signal_fd) {
  if (Status status = server_->watch(signal_fd); !status.ok()) return status;
  std::vector<int> ready;
  while (true) {
    const TimeNs deadline = std::min(membership_->poll_timer(), now_ns() + kIdleWake);
    server_->wait(deadline, &ready);
    for (const int fd : ready) {
      if (fd == signal_fd && on_signal(signal_fd)) {
        if (monitor_) monitor_->on_stop();
        membership_->on_stop("gatund at " + addresses_text_ + " is stopping", now_ns());
        obey();
        server_->drain(now_ns() + kStopWait);
        return {};
      }
      if (door_ && fd == door_->wait_fd()) door_->serve(now_ns());
      if (monitor_ && fd == monitor_->wait_fd()) monitor_->answer(facts());
    }
    obey();
    if (now_ns() >= renew_at_) renew_leases(now_ns());
  }
}

// True: stop.
bool Daemon::on_signal(int signal_fd) {
  signalfd_siginfo info;
  if (::read(signal_fd, &info, sizeof info) != sizeof info) return false;
  if (info.ssi_signo != SIGUSR1) return true;
  log_->info("%s", counters().c_str());
  return false;
}

void Daemon::obey() {
  Membership::Action action;
  while (membership_->poll_action(&action)) {
    if (action.kind == Membership::Action::kAdmit) {
      const TimeNs now = now_ns();
      membership_->on_admitted(action.job, jobs_->admit(action.plan, now), now);
    } else if (action.kind == Membership::Action::kAttach) {
      const Result<std::string> card = jobs_->attach(action.job, action.rank, action.attach);
      membership_->on_attached(action.job, action.rank, action.attach.lane, card, now_ns());
    } else {
      jobs_->remove(action.job);
    }
  }
  server_->obey();
  std::string line;
  while (membership_->poll_log(&line)) say(line);
}

// Peers can make Membership talk; they cannot fill the log.
void Daemon::say(const std::string& line) {
  const TimeNs now = now_ns();
  if (now - log_second_ >= kSecond) {
    if (lines_in_second_ > kLinesPerSecond) log_->warn("%u more lines are not shown", lines_in_second_ - kLinesPerSecond);
    log_second_ = now;
    lines_in_second_ = 0;
  }
  if (++lines_in_second_ <= kLinesPerSecond) log_->info("%s", line.c_str());
}

// A job holds its lease while the controller, which is in this process, holds the job.
void Daemon::renew_leases(TimeNs now) {
  renew_at_ = now + settings_.keepalive / 3;
  jobs_->renew(now, [this](uint32_t job) { return membership_->alive(job); });
  if (const uint32_t expired = jobs_->remove_expired(now)) log_->warn("%u jobs without an owner were removed", expired);
  if (door_) door_->serve(now);  // gives up callers that say nothing
}

ControlFacts Daemon::facts() const {
  ControlFacts facts{.counts = jobs_->counts(), .connections = server_->connections(), .refusals = membership_->refusals()};
  for (Membership::JobState& state : membership_->job_states()) {
    const uint64_t memory_bytes = jobs_->memory_bytes(state.job);
    facts.jobs.push_back({.state = std::move(state), .memory_bytes = memory_bytes});
  }
  return facts;
}

std::string Daemon::counters() {
  std::string text;
  const auto add = [&](const char* name, uint64_t value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  };
  const Jobs::Counts counts = jobs_->counts();
  add("counters: jobs", counts.jobs);
  add("trees", counts.trees);
  add("memory", counts.memory_bytes);
  add("offers", counts.offers);
  add("connections", server_->connections());
  add("refused", membership_->refusals());
  add("descriptors", static_cast<uint64_t>(open_descriptors()));
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane::Stats lane = lanes_[i]->stats();
    text += "; lane " + std::to_string(i) + ": trees " + std::to_string(lane.trees);
    add("links", lane.links);
    add("peers", lane.peers);
    add("received", lane.transport.packets_received);
    add("sent", lane.transport.packets_sent);
    add("reduced", lane.node.reduced_chunks);
    add("repeats", lane.node.repeats);
    add("statuses", lane.node.statuses);
    add("refusals", lane.node.refusals);
    add("malformed", lane.node.dropped_malformed);
    add("checksum", lane.node.dropped_checksum);
    add("foreign", lane.node.dropped_foreign + lane.dropped_foreign);
    add("stale", lane.node.dropped_stale);
    add("unexpected", lane.node.dropped_unexpected);
    add("runt", lane.transport.dropped_runt);
    add("invalid", lane.transport.dropped_invalid);
    add("no buffer", lane.transport.dropped_no_buffer);
    add("unsent", lane.transport.dropped_send + lane.dropped_unsent);
  }
  return text;
}

}  // namespace gatun
