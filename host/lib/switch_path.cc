#include "host/lib/switch_path.h"

#include <unistd.h>

#include <algorithm>

namespace gatun {
namespace {

constexpr TimeNs kProbePatience = 5 * kSecond;
constexpr TimeNs kSilence = 3 * control::kWaitingEvery;  // of a controller that is alive
constexpr TimeNs kLeaveWithin = 1 * kSecond;
constexpr uint32_t kWindowInitial = 16;  // chunks; the congestion window grows from there

control::Join make_request(const SwitchPath::Config& config, const Endpoint& controller) {
  const SettingValues& settings = *config.settings;
  control::Join join{.job = settings.job,
                     .rank = config.rank,
                     .size = config.ranks,
                     .trees = settings.trees,
                     .window = settings.window,
                     .payload_bytes = settings.payload_bytes};
  // On the wire dpdk is udp: ranks with and without it work together.
  control::transport_choice(settings.transport == "dpdk" ? "udp" : settings.transport, &join.transport);
  control::fallback_choice(settings.fallback, &join.fallback);
  const PathFacts facts = udp_path_facts(controller, config.device);
  join.path_payload_bytes = facts.payload_bytes;
  join.receive_bytes = facts.receive_bytes;
  join.join_timeout_ms = static_cast<uint32_t>(std::min<TimeNs>(settings.join_timeout / kMs, UINT32_MAX));
  join.pid = static_cast<uint32_t>(::getpid());
  join.failovers = config.failovers;
  join.host = host_name();
  join.host_identity = host_identity();
  join.software = "gatun " GATUN_VERSION_TEXT;
  join.card = config.card;
  return join;
}

}  // namespace

Result<std::unique_ptr<SwitchPath>> SwitchPath::join(const Config& config, std::unique_ptr<ControlConnection> connection,
                                                     TimeNs deadline, std::vector<std::string>* cards) {
  std::unique_ptr<SwitchPath> path(new SwitchPath);
  path->client_ = std::make_unique<ControlClient>(
      std::move(connection),
      ControlClient::Patience{.stop = config.stop,
                              .silence = config.retain ? kSilence : kNever,  // without a fallback only the deadline helps
                              .on_waiting = config.on_waiting});
  ControlClient& client = *path->client_;
  path->facts_.address = client.connection().name();

  // The controller has the same deadline, and its sentence says who is missing: leave it the time to speak first.
  const control::Join request = make_request(config, client.connection().peer());
  Result<control::Admit> admit = client.join(request, deadline + 1 * kSecond, cards);
  if (!admit.ok()) return admit.status();
  if (Status status = path->attach_and_prove(config, admit.value(), deadline); !status.ok()) {
    // A path can be silent because another rank gave up first; then that rank's sentence says more.
    if (Status end = client.ended(); !end.ok() && status.code() == Code::kTimeout) return end;
    if (status.code() == Code::kTimeout) status = Status(Code::kSwitchLost, status.message());
    client.give_up(status);
    return status;
  }
  if (Status status = client.ready(std::max(deadline, now_ns() + 2 * kProbePatience)); !status.ok()) return status;
  path->keepalive_ = TimeNs{admit->keepalive_ms} * kMs;
  return path;
}

Status SwitchPath::attach_and_prove(const Config& config, const control::Admit& admit, TimeNs deadline) {
  const TimeNs patience = std::clamp<TimeNs>(deadline - now_ns(), kSecond, kProbePatience);
  const TimeNs attach_by = now_ns() + patience;
  const auto exchange = [&](uint8_t lane, const std::string& card) { return client_->attach(lane, card, attach_by); };
  Result<Attachment> attached = attach({.admit = &admit,
                                        .controller = client_->connection().peer(),
                                        .local = client_->connection().local(),
                                        .rank = config.rank,
                                        .device = config.device,
                                        .exchange = exchange,
                                        .wrap = config.wrap},
                                       attach_by);
  if (!attached.ok()) return attached.status();
  Attachment& attachment = attached.value();
  if (Status status = prove(admit, attachment, patience, config.stop); !status.ok()) return status;

  facts_.trees = static_cast<uint32_t>(admit.trees.size());
  facts_.window = admit.window;
  facts_.payload_bytes = admit.payload_bytes;
  const TransportCaps caps = attachment.links[0]->caps();
  facts_.transport = caps.name;
  facts_.cores = caps.cores;
  job_ = {.handle = admit.job, .window = admit.window, .first_op = admit.first_op};
  datapath_ =
      std::make_unique<Datapath>(Datapath::Config{.job = admit.job,
                                                  .payload_bytes = admit.payload_bytes,
                                                  .worker = {.trees = facts_.trees,
                                                             .window = admit.window,
                                                             .window_initial = std::min(admit.window, kWindowInitial),
                                                             .reliable = attachment.reliable,
                                                             .rto_min = config.settings->rto_min,
                                                             .first_seq = admit.first_seq,
                                                             .first_op = admit.first_op},
                                                  .trees = attachment.trees,
                                                  .checksum = !attachment.intact,
                                                  .retain = config.retain},
                                 std::move(attachment.links));
  waiter_ = std::move(attachment.waiter);
  return {};
}

Status SwitchPath::run(Events* events) {
  events_ = events;
  return client_->run(this, keepalive_);
}

void SwitchPath::leave() {
  client_->leave(kLeaveWithin);
}

}  // namespace gatun
