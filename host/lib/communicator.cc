#include "host/lib/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

namespace gatun {
namespace {

constexpr TimeNs kStartingGrace = 1 * kSecond;  // a daemon started together with us listens by then
constexpr TimeNs kMeetAfter = 2 * kSecond;      // at a switch that still waits for ranks
constexpr TimeNs kMeshWithin = 10 * kSecond;    // behind the join: the ranks are there already
constexpr TimeNs kDrain = 1 * kSecond;          // what is pending at the end has so long
constexpr TimeNs kSeekFirst = 200 * kMs;        // between two looks for a switch, doubled up to
constexpr TimeNs kSeekMax = 5 * kSecond;
constexpr TimeNs kSeekJoin = 10 * kSecond;  // the other ranks look for it too
constexpr TimeNs kSeekConnect = 1 * kSecond;
constexpr TimeNs kSteady = 10 * kSecond;  // one that is lost sooner is left alone for a while, doubled up to kSeekMax

}  // namespace

Communicator::Communicator(Config config)
    : config_(std::move(config)),
      log_("gatun[" + std::to_string(config_.rank) + "] job '" + config_.settings.job + "'",
           log_level(config_.settings.log)) {}

Result<std::unique_ptr<Communicator>> Communicator::create(Config config) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(config)));
  if (communicator->config_.ranks == 1) return communicator;
  if (Status status = communicator->connect(); !status.ok()) return status;
  return communicator;
}

Communicator::~Communicator() {
  if (!lane_) return;
  if (!lane_->drain(now_ns() + kDrain)) {
    lane_->give_up_job("rank " + std::to_string(config_.rank) + " left while operations were pending");
    lane_->drain(kNever);
  }
  stop_ = true;
  lane_->stop_seeking();
  {
    const std::lock_guard lock(seek_mutex_);
    seek_wake_.notify_all();
  }
  if (seeker_.joinable()) seeker_.join();
  lane_->leave();
}

Result<std::unique_ptr<ControlConnection>> Communicator::reach_switch(TimeNs grace, TimeNs deadline) const {
  return ControlConnection::connect(config_.settings.address, deadline, grace);
}

// How the ranks meet: by the caller's store if there is one, else by the controller or the rendezvous of rank 0, whichever
// has all cards first. With a store the mesh comes first, and then all try the switch or none does. In every case they agree
// at the end.
Status Communicator::connect() {
  const SettingValues& settings = config_.settings;
  const TimeNs deadline = now_ns() + settings.join_timeout;
  if (Status status = open_device(); !status.ok()) return status;
  const bool fallback = settings.fallback != "off";
  std::unique_ptr<MeshListener> listener;
  if (fallback) {
    Result<std::unique_ptr<MeshListener>> opened = MeshListener::open(settings.address);
    if (!opened.ok()) return opened.status();
    listener = std::move(opened.value());
  }
  const std::string card = fallback ? listener->card().encode() : "";

  Meeting meeting({.address = settings.rendezvous,
                   .job = settings.job,
                   .rank = config_.rank,
                   .ranks = config_.ranks,
                   .card = card,
                   .deadline = deadline,
                   .warn_every = settings.stall_warning,
                   .log = &log_});
  Status no_switch;
  std::unique_ptr<SwitchPath> path;
  std::unique_ptr<Ring> ring;
  std::vector<std::string> cards;
  if (fallback && config_.store) {
    if (Status status = meet_by_store(&listener, card, deadline, &ring, &path, &no_switch); !status.ok()) return status;
  } else {
    if (Status status = fallback ? meeting.start(kMeetAfter) : Status(); !status.ok()) return status;
    no_switch = meet_at_switch(card, deadline, fallback ? &meeting : nullptr, &path, &cards);
    const bool gone = cards.empty() && (no_switch.code() == Code::kSwitchLost || no_switch.code() == Code::kSystem);
    if (!path && (!fallback || (!gone && cards.size() != config_.ranks))) return no_switch;
    if (!path) meeting.hurry();  // a rank that has the cards goes there for those that have not
    if (!path && gone) {
      Result<std::vector<std::string>> met = meet_without_switch(meeting, no_switch);
      if (!met.ok()) return met.status();
      cards = std::move(met.value());
    }
  }
  if (fallback && !ring) {
    Result<std::unique_ptr<Ring>> made = make_ring(std::move(listener), cards, std::max(deadline, now_ns() + kMeshWithin));
    if (!made.ok()) return made.status();
    ring = std::move(made.value());
  }
  if (ring) {
    Result<bool> all = ring->all_same(path ? path->job().handle : 0, std::max(deadline, now_ns() + kMeshWithin));
    if (!all.ok()) return all.status();
    if (!all.value() && path) {
      path->leave();
      path.reset();
      no_switch = Status(Code::kSwitchLost, "not every rank could join at the switch");
    }
    if (!path) log_.info("no switch: %s; operations go on without it (%s)", no_switch.message(), ring->engine());
  }
  if (path && settings.transport == "auto") say_why(path->facts());
  return start_lane(std::move(path), std::move(ring), no_switch.message());
}

// The choice of auto, with its reason: rank 0 for all.
void Communicator::say_why(const SwitchPath::Facts& facts) const {
  std::string why = "the switch at " + facts.address + " is on this host";
  if (facts.transport != "shm") {
    const bool none = config_.settings.device.empty();
    why =
        "the switch at " + facts.address + " shares no memory with this process, and " +
        (device_ ? "the setting device names one of DPDK"
                 : std::string("DPDK has no device (the setting device ") + (none ? "is none)" : "names none that opens)")) +
        "; RDMA is for transport verbs only";
  }
  const char* format = "transport auto takes %s: %s";
  config_.rank == 0 ? log_.info(format, facts.transport.c_str(), why.c_str())
                    : log_.debug(format, facts.transport.c_str(), why.c_str());
}

Status Communicator::meet_by_store(std::unique_ptr<MeshListener>* listener, const std::string& card, TimeNs deadline,
                                   std::unique_ptr<Ring>* ring, std::unique_ptr<SwitchPath>* path, Status* no_switch) {
  Result<std::unique_ptr<ControlConnection>> reached = reach_switch(0, deadline);
  *no_switch = reached.status();
  if (no_switch->code() == Code::kInvalidArgument) return *no_switch;
  Result<std::vector<std::string>> cards =
      exchange(*config_.store, "gatun/" + config_.settings.job, config_.rank, config_.ranks, card, deadline);
  if (!cards.ok()) return cards.status();
  Result<std::unique_ptr<Ring>> made = make_ring(std::move(*listener), cards.value(), deadline);
  if (!made.ok()) return made.status();
  *ring = std::move(made.value());
  Result<bool> all = (*ring)->all_same(reached.ok() ? 1 : 2 + config_.rank, deadline);
  if (!all.ok()) return all.status();
  if (all.value()) {
    *no_switch = join_switch(std::move(reached.value()), "", deadline, &stop_, path, &cards.value());
  } else if (reached.ok()) {
    *no_switch = Status(Code::kSwitchLost, "not every rank reaches the switch");
  }
  return {};
}

// The ranks meet at the controller, which tells them their cards, unless the rendezvous (null: none) has them first. One
// that dies before it has done so may be started again at once: hence a second look.
Status Communicator::meet_at_switch(const std::string& card, TimeNs deadline, Meeting* meeting,
                                    std::unique_ptr<SwitchPath>* path, std::vector<std::string>* cards) {
  Status status;
  for (int look = 0; look < 2; ++look) {
    Result<std::unique_ptr<ControlConnection>> reached = reach_switch(config_.store ? 0 : kStartingGrace, deadline);
    if (!reached.ok()) return status.ok() ? reached.status() : status;
    status = join_switch(std::move(reached.value()), card, deadline, meeting ? &meeting->met() : &stop_, path, cards);
    if (!meeting || !cards->empty()) break;
    if (status.code() == Code::kAborted && meeting->met()) return {Code::kSwitchLost, "not every rank reaches the switch"};
    if (status.code() != Code::kSwitchLost) break;
    meeting->hurry();
  }
  return status;
}

Status Communicator::join_switch(std::unique_ptr<ControlConnection> connection, const std::string& card, TimeNs deadline,
                                 const std::atomic<bool>* stop, std::unique_ptr<SwitchPath>* path,
                                 std::vector<std::string>* cards) {
  SwitchPath::Config config = path_config(card, stop);
  const TimeNs warn_at = config_.settings.stall_warning == 0 ? kNever : now_ns() + config_.settings.stall_warning;
  config.on_waiting = [this, warn_at, said = std::string()](const std::string& text) mutable {
    if (now_ns() < warn_at || text == said) return;
    log_.warn("the switch at %s waits for %s", config_.settings.address.c_str(), text.c_str());
    said = text;
  };
  Result<std::unique_ptr<SwitchPath>> joined = SwitchPath::join(config, std::move(connection), deadline, cards);
  if (joined.ok()) *path = std::move(joined.value());
  return joined.status();
}

Result<std::vector<std::string>> Communicator::meet_without_switch(Meeting& meeting, const Status& no_switch) const {
  log_.info("no switch yet: meeting the other ranks at %s (GATUN_RENDEZVOUS)", config_.settings.rendezvous.c_str());
  Result<std::vector<std::string>> cards = meeting.wait();
  if (cards.ok()) return cards;
  return Status(cards.status().code(),
                std::string(no_switch.message()) + "; and without a switch: " + cards.status().message());
}

SwitchPath::Config Communicator::path_config(const std::string& card, const std::atomic<bool>* stop) const {
  return {.settings = &config_.settings,
          .rank = config_.rank,
          .ranks = config_.ranks,
          .device = device_.get(),
          .card = card,
          .retain = config_.settings.fallback != "off",
          .stop = stop,
          .wrap = config_.wrap};
}

Status Communicator::open_device() {
  std::string why;
  Result<std::shared_ptr<DpdkDevice>> device = wanted_dpdk(config_.settings, {}, &why);
  if (!device.ok()) return device.status();
  device_ = std::move(device.value());
  if (!why.empty()) log_.warn("%s; kernel sockets are used instead", why.c_str());
  if (device_ && !device_->warning().empty()) log_.warn("%s", device_->warning().c_str());
  return {};
}

Result<std::unique_ptr<Ring>> Communicator::make_ring(std::unique_ptr<MeshListener> listener,
                                                      const std::vector<std::string>& cards, TimeNs deadline) const {
  std::string note;
  Result<std::unique_ptr<Ring>> ring =
      Ring::make(std::move(listener), config_.rank, cards, config_.settings.fallback, deadline, &note);
  if (!note.empty()) log_.info("%s", note.c_str());
  return ring;
}

Status Communicator::start_lane(std::unique_ptr<SwitchPath> path, std::unique_ptr<Ring> ring, const std::string& why) {
  const bool seeks = ring != nullptr;
  if (ring) way_ = ring->exact() ? "exact" : "ring";
  lane_ = std::make_unique<Lane>(Lane::Config{.rank = config_.rank,
                                              .ranks = config_.ranks,
                                              .timeout = config_.settings.timeout,
                                              .stall_warning = config_.settings.stall_warning,
                                              .detect = config_.settings.detect,
                                              .busy_poll = config_.settings.busy_poll > 0},
                                 std::move(path), std::move(ring), why, &log_);
  if (Status status = lane_->run_paths(); !status.ok() || !seeks) return status;
  try {
    seeker_ = std::thread([this] { seek(); });
  } catch (const std::system_error& error) {
    return {Code::kSystem, std::string("cannot start the thread that looks for a switch: ") + error.what()};
  }
  return {};
}

// While the job is on the ring: joins the switch when one is there. The other ranks do the same, and the lane changes over
// when all have.
void Communicator::seek() {
  TimeNs wait = kSeekFirst, rest = kSeekFirst / 2, joined = 0;
  std::string said;
  while (lane_->wait_wanted()) {
    if (joined != 0) {  // and lost
      rest = now_ns() - joined < kSteady ? std::min(2 * rest, kSeekMax) : kSeekFirst;
      joined = 0;
      if (!pause(rest)) return;
    }
    const TimeNs now = now_ns();
    Result<std::unique_ptr<ControlConnection>> connection = reach_switch(0, now + kSeekConnect);
    Status status = connection.status();
    if (connection.ok()) {
      std::vector<std::string> cards;
      SwitchPath::Config config = path_config("", &stop_);
      config.failovers = static_cast<uint32_t>(lane_->stats().failovers);
      Result<std::unique_ptr<SwitchPath>> path =
          SwitchPath::join(config, std::move(connection.value()), now + kSeekJoin, &cards);
      status = path.status();
      if (path.ok()) {
        lane_->offer(std::move(path.value()));
        joined = now_ns();
        wait = kSeekFirst;
        continue;
      }
    }
    if (status.message() != said) log_.debug("still without a switch: %s", status.message());
    said = status.message();
    if (!pause(wait)) return;
    wait = std::min(2 * wait, kSeekMax);
  }
}

// False: the end has come.
bool Communicator::pause(TimeNs duration) {
  std::unique_lock lock(seek_mutex_);
  return !seek_wake_.wait_for(lock, std::chrono::nanoseconds(duration), [&] { return stop_.load(); });
}

Status Communicator::start(const Contract& contract, const void* send, void* recv, const Lane::Call& call,
                           Request** request) {
  if (lane_) return lane_->start(contract, send, recv, call, request);
  Status status = run_alone(contract, send, recv);
  if (!status.ok()) return status;
  if (call.done) call.done(call.context, 0, "");
  if (!request) return {};
  const std::lock_guard lock(mutex_);
  *request = pool_.take();
  (*request)->state.store(Request::kDone, std::memory_order_release);
  return {};
}

Status Communicator::run(const Contract& contract, const void* send, void* recv) {
  return lane_ ? lane_->run(contract, send, recv) : run_alone(contract, send, recv);
}

Status Communicator::take(Request* request) {
  if (lane_) return lane_->take(request);
  const std::lock_guard lock(mutex_);
  Status status = std::move(request->status);
  pool_.give(request);
  return status;
}

Status Communicator::register_memory(std::span<std::byte> memory) {
  if (lane_) return lane_->register_memory(memory);
  const std::lock_guard lock(mutex_);
  bool first = false;
  return registrations_.add(memory, &first);
}

Status Communicator::deregister_memory(const void* address) {
  if (lane_) return lane_->deregister_memory(address);
  const std::lock_guard lock(mutex_);
  return registrations_.remove(address);
}

// The sum, average, minimum and maximum of one value are that value.
Status Communicator::run_alone(const Contract& contract, const void* send, void* recv) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    ++operations_;
  }
  const auto bytes = static_cast<size_t>(Operation::receive_bytes(contract, 0, 1));
  if (bytes > 0 && send != recv) std::memmove(recv, send, bytes);
  return {};
}

void Communicator::abort_job(const std::string& reason) {
  if (lane_) return lane_->give_up_job(reason);
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = Status(Code::kAborted, reason);
}

Status Communicator::failure() const {
  if (lane_) return lane_->failure();
  const std::lock_guard lock(mutex_);
  return failure_;
}

Communicator::Facts Communicator::facts() const {
  Facts facts{.rank = config_.rank, .ranks = config_.ranks, .transport = "self"};
  if (!lane_) return facts;
  const Lane::Present present = lane_->present();
  facts.trees = present.path.trees;
  facts.window = present.path.window;
  facts.payload_bytes = present.path.payload_bytes;
  facts.transport = present.on_switch ? present.path.transport : way_;
  facts.address = present.on_switch ? present.path.address : "";
  facts.why = present.why;
  return facts;
}

Lane::Stats Communicator::stats() {
  if (lane_) return lane_->stats();
  const std::lock_guard lock(mutex_);
  Lane::Stats stats;
  stats.operations = operations_;
  return stats;
}

}  // namespace gatun
