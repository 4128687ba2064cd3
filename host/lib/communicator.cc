#include "host/lib/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gatun {
namespace {

constexpr TimeNs kProbePatience = 5 * kSecond;
constexpr TimeNs kLeaveWithin = 1 * kSecond;
constexpr uint32_t kWindowInitial = 16;  // chunks; the congestion window grows from there

control::Join make_request(const SettingValues& settings, uint32_t rank, uint32_t ranks, const Endpoint& controller) {
  control::Join join{.job = settings.job,
                     .rank = rank,
                     .size = ranks,
                     .trees = settings.trees,
                     .window = settings.window,
                     .payload_bytes = settings.payload_bytes};
  control::transport_choice(settings.transport, &join.transport);
  const PathFacts facts = udp_path_facts(controller);
  join.path_payload_bytes = facts.payload_bytes;
  join.receive_bytes = facts.receive_bytes;
  join.join_timeout_ms = static_cast<uint32_t>(std::min<TimeNs>(settings.join_timeout / kMs, UINT32_MAX));
  join.pid = static_cast<uint32_t>(::getpid());
  join.host = host_name();
  join.host_identity = host_identity();
  join.software = "gatun " GATUN_VERSION_TEXT;
  return join;
}

}  // namespace

Communicator::Communicator(Config config)
    : config_(std::move(config)), log_("gatun[" + std::to_string(config_.rank) + "]", log_level(config_.settings.log)) {
  facts_.rank = config_.rank;
  facts_.ranks = config_.ranks;
}

Result<std::unique_ptr<Communicator>> Communicator::create(Config config) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(config)));
  if (communicator->config_.ranks == 1) {
    communicator->facts_.transport = "self";
    return communicator;
  }
  if (Status status = communicator->connect(); !status.ok()) return status;
  return communicator;
}

Communicator::~Communicator() {
  if (!lane_) return;
  lane_->drain();
  client_->leave(kLeaveWithin);
}

Status Communicator::connect() {
  const SettingValues& settings = config_.settings;
  const TimeNs deadline = now_ns() + settings.join_timeout;
  Result<std::unique_ptr<ControlConnection>> connection = ControlConnection::connect(settings.address, deadline);
  if (!connection.ok()) return connection.status();
  client_ = std::make_unique<ControlClient>(std::move(connection.value()));
  facts_.address = client_->connection().name();

  // The controller has the same deadline, and its sentence says who is missing: leave it the time to speak first.
  const control::Join request = make_request(settings, config_.rank, config_.ranks, client_->connection().peer());
  Result<control::Admit> admit = client_->join(request, deadline + 1 * kSecond);
  if (!admit.ok()) return admit.status();
  if (Status status = attach_and_prove(admit.value(), deadline); !status.ok()) {
    // A path can be silent because another rank gave up first; then that rank's sentence says more.
    if (Status end = client_->ended(); !end.ok() && status.code() == Code::kTimeout) return end;
    if (status.code() == Code::kTimeout) status = Status(Code::kSwitchLost, status.message());
    client_->give_up(status);
    return status;
  }
  if (Status status = client_->ready(std::max(deadline, now_ns() + 2 * kProbePatience)); !status.ok()) return status;
  return client_->run(this, TimeNs{admit->keepalive_ms} * kMs);
}

Status Communicator::attach_and_prove(const control::Admit& admit, TimeNs deadline) {
  const TimeNs patience = std::clamp<TimeNs>(deadline - now_ns(), kSecond, kProbePatience);
  Result<Attachment> attached =
      attach({.admit = &admit, .controller = client_->connection().peer(), .rank = config_.rank, .wrap = config_.wrap},
             now_ns() + patience);
  if (!attached.ok()) return attached.status();
  Attachment& attachment = attached.value();
  if (Status status = prove(admit, attachment, patience); !status.ok()) return status;

  const auto trees = static_cast<uint32_t>(admit.trees.size());
  facts_.trees = trees;
  facts_.window = admit.window;
  facts_.payload_bytes = admit.payload_bytes;
  facts_.transport = control::name(admit.transport);
  Datapath datapath({.job = admit.job,
                     .payload_bytes = admit.payload_bytes,
                     .worker = {.trees = trees,
                                .window = admit.window,
                                .window_initial = std::min(admit.window, kWindowInitial),
                                .reliable = attachment.reliable,
                                .rto_min = config_.settings.rto_min,
                                .first_seq = admit.first_seq,
                                .first_op = admit.first_op},
                     .trees = attachment.trees,
                     .checksum = !attachment.intact},
                    std::move(attachment.links));
  Lane::Events* events = this;
  lane_ = std::make_unique<Lane>(
      Lane::Config{.geometry = {.rank = config_.rank, .ranks = config_.ranks, .payload_bytes = admit.payload_bytes},
                   .timeout = config_.settings.timeout,
                   .stall_warning = config_.settings.stall_warning,
                   .busy_poll = config_.settings.busy_poll > 0,
                   .switch_name = facts_.address},
      std::move(datapath), std::move(attachment.waiter), events, &log_);
  return {};
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
  const Status status(Code::kAborted, reason);
  if (lane_) {
    client_->send(control::Abort{.text = reason});
    lane_->fail(status);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
}

Status Communicator::failure() const {
  if (lane_) return lane_->failure();
  const std::lock_guard lock(mutex_);
  return failure_;
}

Lane::Stats Communicator::stats() {
  if (lane_) return lane_->stats();
  const std::lock_guard lock(mutex_);
  Lane::Stats stats;
  stats.operations = operations_;
  return stats;
}

void Communicator::on_refused(uint32_t op, const Contract& contract) {
  client_->send(control::Report{op, contract});
}

void Communicator::on_stalled(uint32_t op, uint64_t missing_ranks) {
  control::Stalled question{.op = op};
  for (uint16_t rank = 0; rank < 64; ++rank) {
    if (missing_ranks >> rank & 1) question.ranks.push_back(rank);
  }
  client_->send(std::move(question));
}

void Communicator::on_timed_out(const Status& status) {
  client_->send(control::Abort{.text = status.message(), .timed_out = true});
}

void Communicator::on_end(const Status& status) {
  lane_->fail(status);
}

void Communicator::on_mismatch(uint32_t op, const std::string& text) {
  lane_->on_mismatch(op, text);
}

void Communicator::on_left(uint32_t started, const std::string& text) {
  lane_->on_left(started, text);
}

void Communicator::on_stall_text(uint32_t op, const std::string& text) {
  lane_->on_stall_text(op, text);
}

control::KeepAlive Communicator::progress() {
  return {.started = lane_->started(), .finished = lane_->finished()};
}

}  // namespace gatun
