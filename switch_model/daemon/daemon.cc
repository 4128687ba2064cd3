#include "switch_model/daemon/daemon.h"

#include <algorithm>
#include <cerrno>

#include "protocols/worker.h"

namespace gatun {
namespace {

constexpr uint64_t kBufferBytes = 64 * 1024;  // of one received UDP packet
constexpr uint32_t kUdpBuffersMin = 64;
constexpr TimeNs kStopWait = 1 * kSecond;     // for the jobs to take the farewell
constexpr TimeNs kIdleWake = 5 * kSecond;
constexpr size_t kAddressesMax = 3;           // a lane has a socket for each

}  // namespace

Daemon::Daemon(const SettingValues& settings, const Log* log) : settings_(settings), log_(log) {}

Result<std::unique_ptr<Daemon>> Daemon::make(const SettingValues& settings, const Log* log) {
  std::unique_ptr<Daemon> daemon(new Daemon(settings, log));
  if (Status status = daemon->open(); !status.ok()) return status;
  return daemon;
}

Result<std::vector<Endpoint>> Daemon::listen_addresses() const {
  if (!settings_.listen.empty()) {
    auto addresses = resolve(settings_.listen, settings_.port);
    if (!addresses.ok()) return addresses.status();
    for (Endpoint& address : addresses.value()) address.set_port(settings_.port);
    if (addresses.value().size() > kAddressesMax) addresses.value().resize(kAddressesMax);
    return addresses;
  }
  auto addresses = resolve("127.0.0.1", settings_.port);
  if (!addresses.ok()) return addresses.status();
  // IPv6 may be switched off on this host; then its loopback address cannot be bound.
  auto v6 = resolve("[::1]", settings_.port);
  if (v6.ok() && !v6.value().empty()) {
    Fd probe(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    Endpoint any_port = v6.value()[0];
    any_port.set_port(0);
    if (probe.valid() && ::bind(*probe, any_port.address(), any_port.size) == 0) addresses.value().push_back(v6.value()[0]);
  }
  return addresses;
}

// Half of the memory is for received UDP packets that wait for others, half for the jobs' arenas and shared regions.
Status Daemon::open() {
  auto addresses = listen_addresses();
  if (!addresses.ok()) return addresses.status();

  Membership::Config config;
  config.jobs_max = settings_.jobs;
  config.keepalive = settings_.keepalive;
  config.random = random_u64;
  table_ = std::make_unique<JobTable>(
      JobTable::Limits{.memory_bytes = settings_.memory_bytes / 2, .trees = settings_.jobs * kTreesMax});

  // Membership needs the lanes' facts, the lanes the port, and the port a listener: the server is opened first.
  server_ = std::make_unique<ControlServer>(log_);
  if (Status status = server_->listen(addresses.value()); !status.ok()) return status;
  const uint64_t sockets = uint64_t{settings_.lanes} * addresses.value().size();
  const uint64_t udp_buffers = std::max<uint64_t>(kUdpBuffersMin, settings_.memory_bytes / 2 / kBufferBytes / sockets);
  for (uint32_t i = 0; i < settings_.lanes; ++i) {
    Lane::Options options{.index = i,
                          .trees_max = settings_.jobs * kTreesMax,
                          .udp_buffers = static_cast<uint32_t>(udp_buffers),
                          .busy_poll = settings_.busy_poll > 0,
                          .busy_poll_us = static_cast<int>(settings_.busy_poll / kUs)};
    const uint16_t port = settings_.port == 0 ? 0 : static_cast<uint16_t>(server_->port() + i);
    for (const Endpoint& address : addresses.value()) {
      SocketAddress udp;
      Endpoint with_port = address;
      with_port.set_port(port);
      udp.storage = with_port.storage;
      udp.size = with_port.size;
      options.udp.push_back(udp);
    }
    auto lane = Lane::make(options);
    if (!lane.ok()) return lane.status();
    lanes_.push_back(std::move(lane.value()));
  }
  auto door = ShmDoor::make("");
  if (door.ok()) {
    door_ = std::move(door.value());
    config.facts.host_identity = host_identity();
    if (Status status = server_->watch(door_->wait_fd()); !status.ok()) return status;
  } else {
    log_->warn("no shared memory for workers on this host: %s", door.status().message());
  }
  config.facts.udp_payload_bytes = lanes_[0]->udp_caps().payload_bytes_max;
  config.facts.udp_receive_bytes = lanes_[0]->udp_caps().receive_bytes;
  config.facts.udp_buffers = static_cast<uint32_t>(udp_buffers);
  config.facts.lanes = settings_.lanes;
  membership_ = std::make_unique<Membership>(std::move(config));
  server_->serve(membership_.get());

  for (const Endpoint& address : addresses.value()) {
    Endpoint with_port = address;
    with_port.set_port(server_->port());
    addresses_text_ += (addresses_text_.empty() ? "" : ", ") + with_port.text();
  }
  for (auto& lane : lanes_) lane->start();
  return {};
}

std::string Daemon::describe() const {
  return "serves " + addresses_text_ + " (control tcp; data udp from port " + std::to_string(lanes_[0]->udp_port()) +
         (door_ ? ", and shared memory" : "") + "), " + std::to_string(settings_.lanes) + (settings_.lanes == 1 ? " lane" : " lanes") +
         ", at most " + std::to_string(settings_.jobs) + " jobs and " + format_bytes(settings_.memory_bytes) + " of memory for them";
}

Status Daemon::run(int signal_fd) {
  if (Status status = server_->watch(signal_fd); !status.ok()) return status;
  std::vector<int> ready;
  while (true) {
    const TimeNs deadline = std::min(membership_->poll_timer(), now_ns() + kIdleWake);
    server_->wait(deadline, &ready);
    for (const int fd : ready) {
      if (fd == signal_fd) {
        membership_->on_stop("gatund at " + addresses_text_ + " is stopping", now_ns());
        obey();
        server_->drain(now_ns() + kStopWait);
        while (!jobs_.empty()) remove(jobs_.begin()->first);
        return {};
      }
      if (door_ && fd == door_->wait_fd()) door_->serve(now_ns());
    }
    obey();
    if (now_ns() >= renew_at_) renew_leases(now_ns());
  }
}

void Daemon::obey() {
  Membership::Action action;
  while (membership_->poll_action(&action)) {
    if (action.kind == Membership::Action::kAdmit) {
      membership_->on_admitted(action.job, admit(action.plan), now_ns());
    } else {
      remove(action.job);
    }
  }
  server_->obey();
  std::string line;
  while (membership_->poll_log(&line)) log_->info("%s", line.c_str());
}

// A job holds its lease while the controller, which is in this process, holds the job.
void Daemon::renew_leases(TimeNs now) {
  renew_at_ = now + settings_.keepalive / 3;
  for (const auto& [handle, job] : jobs_) table_->renew(handle, now + settings_.keepalive);
  for (uint32_t handle = 0; table_->poll_expired(now, &handle);) remove(handle);
}

Admission Daemon::admit(const JobPlan& plan) {
  Admission admission;
  const uint32_t lane_count = static_cast<uint32_t>(lanes_.size());
  // Jobs begin on different lanes, so that jobs of one tree use all of them.
  const uint32_t first_lane = plan.job % lane_count;
  Job& job = jobs_[plan.job];
  admission.status = prepare(plan, first_lane, &job);
  if (!admission.status.ok()) {
    remove(plan.job);
    return admission;
  }
  for (uint32_t t = 0; t < plan.trees; ++t) {
    const uint32_t lane = (first_lane + t) % lane_count;
    admission.trees.push_back({.port = lanes_[lane]->udp_port(), .lane = static_cast<uint8_t>(lane)});
  }
  if (door_) admission.shm_socket = door_->name();
  return admission;
}

Status Daemon::prepare(const JobPlan& plan, uint32_t first_lane, Job* job) {
  const uint32_t lane_count = static_cast<uint32_t>(lanes_.size());
  job->token = plan.token;
  job->lanes.resize(lane_count);
  job->shm_arenas.resize(lane_count);
  job->arenas.resize(lane_count);
  for (uint32_t t = 0; t < plan.trees; ++t) {
    TreeSpec spec{.job = plan.job,
                  .token = plan.token,
                  .tree = static_cast<uint8_t>(t),
                  .window = plan.window,
                  .payload_bytes = plan.payload_bytes};
    for (uint16_t rank = 0; rank < plan.ranks; ++rank) spec.child_ranks.push_back({rank});
    job->lanes[(first_lane + t) % lane_count].trees.push_back(std::move(spec));
  }
  const auto shm_ranks = static_cast<uint64_t>(std::count(plan.shm.begin(), plan.shm.end(), true));
  JobTable::Need need{.trees = plan.trees};
  for (const LaneJob& lane : job->lanes) {
    if (lane.trees.empty()) continue;
    const ShmShape shape = ShmShape::make(static_cast<uint32_t>(lane.trees.size()), plan.window, plan.payload_bytes);
    need.memory_bytes += shape.result_bytes + shm_ranks * shape.region_bytes();
  }
  if (Status status = table_->admit(plan.job, need, now_ns() + settings_.keepalive); !status.ok()) return status;

  for (uint32_t i = 0; i < lane_count; ++i) {
    LaneJob& lane = job->lanes[i];
    lane.job = plan.job;
    if (lane.trees.empty()) continue;
    const ShmShape shape = ShmShape::make(static_cast<uint32_t>(lane.trees.size()), plan.window, plan.payload_bytes);
    std::span<std::byte> memory;
    if (shm_ranks > 0) {
      auto arena = ShmArena::make(shape.result_bytes);
      if (!arena.ok()) return arena.status();
      job->shm_arenas[i] = arena.value();
      memory = job->shm_arenas[i]->bytes();
      if (Status status = offer_shm(plan, i, shape, job); !status.ok()) return status;
    } else {
      job->arenas[i].resize(shape.result_bytes);
      memory = job->arenas[i];
    }
    const size_t arena_bytes = lane.trees[0].arena_bytes();
    for (size_t t = 0; t < lane.trees.size(); ++t) lane.arenas.push_back(memory.subspan(t * arena_bytes, arena_bytes));
    if (Status status = lanes_[i]->admit(&lane); !status.ok()) return status;
  }
  return {};
}

Status Daemon::offer_shm(const JobPlan& plan, uint32_t lane, const ShmShape& shape, Job* job) {
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
    if (!plan.shm[rank]) continue;
    ShmTicket ticket;
    auto port = ShmPort::make(shape, job->shm_arenas[lane], &ticket);
    if (!port.ok()) return port.status();
    job->lanes[lane].ports.push_back(std::move(port.value()));
    door_->offer({.token = plan.token, .rank = rank, .lane = lane}, std::move(ticket));
  }
  return {};
}

void Daemon::remove(uint32_t handle) {
  const auto found = jobs_.find(handle);
  if (found != jobs_.end()) {
    Job& job = found->second;
    for (uint32_t i = 0; i < job.lanes.size(); ++i) {
      if (!job.lanes[i].trees.empty()) lanes_[i]->remove(&job.lanes[i]);
    }
    if (door_) door_->withdraw_all(job.token);
    jobs_.erase(found);
  }
  table_->remove(handle);
}

}  // namespace gatun
