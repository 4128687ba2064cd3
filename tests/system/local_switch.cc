#include "tests/system/local_switch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <vector>

#include "host/base/os.h"
#include "host/transport/shm.h"
#include "host/transport/udp.h"
#include "switch_model/node.h"

namespace gatun {
namespace {

constexpr uint32_t kUdp = 0, kShm = 1;
// The node's numbers of peers and buffers carry the transport's index.
constexpr uint32_t tag(uint32_t transport, uint32_t id) {
  return id == kNoPeer ? id : transport << 24 | id;
}
constexpr uint32_t transport_of(uint32_t id) {
  return id >> 24;
}
constexpr uint32_t untag(uint32_t id) {
  return id & 0xffffff;
}

struct Connection {
  Fd fd;
  control::Parser parser;
};

}  // namespace

struct LocalSwitch::Core {
  explicit Core(const LocalSwitchOptions& options) : options(options), node(256) {}

  struct Job {
    uint32_t trees = 0;
    uint64_t token = 0;
    std::shared_ptr<ShmArena> arena;
    std::vector<PeerId> ports;
  };

  LocalSwitchOptions options;
  Fd epoll, listener;
  std::array<std::unique_ptr<Transport>, 2> transports;
  ShmHub* shm_hub = nullptr;
  std::unique_ptr<ShmDoor> door;
  uint16_t udp_port = 0;
  Node node;
  std::unique_ptr<Membership> membership;
  std::map<ConnId, Connection> connections;
  std::map<uint32_t, Job> jobs;
  ConnId next_connection = 1;
  Outbox outbox;

  uint16_t open();
  void pump_data();
  void drain_outbox();
  void pump_control();
  void read(ConnId id, Connection& connection);
  void obey();
  Admission admit(const JobPlan& plan);
  void remove(uint32_t handle);
  void watch(int fd, uint32_t events);
  void wait();
};

LocalSwitch::LocalSwitch(LocalSwitchOptions options) : core_(std::make_unique<Core>(options)) {
  port_ = core_->open();
  thread_ = std::thread([this] { loop(); });
}

LocalSwitch::~LocalSwitch() {
  quit_ = true;
  if (thread_.joinable()) thread_.join();
}

void LocalSwitch::stop(const std::string& text) {
  stop_text_ = text;
  stop_ = true;
}

void LocalSwitch::loop() {
  bool told = false;
  while (!quit_) {
    core_->pump_data();
    core_->pump_control();
    if (stop_ && !told) {
      core_->membership->on_stop(stop_text_, now_ns());
      told = true;
    }
    core_->obey();
    jobs_ = core_->membership->jobs();
    connections_ = static_cast<uint32_t>(core_->connections.size());
    trees_ = core_->node.trees();
    core_->wait();
  }
}

uint16_t LocalSwitch::Core::open() {
  epoll = Fd(::epoll_create1(EPOLL_CLOEXEC));
  listener = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  GATUN_CHECK(::bind(*listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  GATUN_CHECK(::listen(*listener, 256) == 0);
  GATUN_CHECK(::getsockname(*listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);

  watch(*listener, EPOLLIN);

  Membership::Config config{.keepalive = options.keepalive,
                            .stall_wait = options.stall_wait,
                            .first_seq = options.first_seq,
                            .first_op = options.first_op,
                            .random = random_u64};
  if (options.udp) {
    auto hub = UdpHub::make(Endpoint::parse("127.0.0.1", 0).value(), {});
    GATUN_CHECK(hub.ok());
    udp_port = hub.value()->local().port();
    config.facts.udp_payload_bytes = hub.value()->caps().payload_bytes_max;
    config.facts.udp_receive_bytes = hub.value()->caps().receive_bytes;
    transports[kUdp] = std::move(hub.value());
  }
  if (options.shm) {
    auto hub = ShmHub::make({});
    auto made = ShmDoor::make("");
    GATUN_CHECK(hub.ok() && made.ok());
    shm_hub = hub.value().get();
    transports[kShm] = std::move(hub.value());
    door = std::move(made.value());
    config.facts.host_identity = host_identity();
    watch(door->wait_fd(), EPOLLIN);
  }
  for (const auto& transport : transports) {
    if (transport) watch(transport->wait_fd(), EPOLLIN | EPOLLET);
  }
  membership = std::make_unique<Membership>(std::move(config));
  return ntohs(address.sin_port);
}

void LocalSwitch::Core::pump_data() {
  std::array<RxPacket, kBurst> packets;
  for (uint32_t index = 0; index < transports.size(); ++index) {
    if (!transports[index]) continue;
    const int count = transports[index]->receive(packets);
    for (int i = 0; i < count; ++i) {
      RxPacket packet = packets[static_cast<size_t>(i)];
      if (packet.buffer != kNoBuffer) packet.buffer = tag(index, packet.buffer);
      if (options.deaf && options.deaf(packet)) {
        const BufferId buffer = untag(packet.buffer);
        if (packet.buffer != kNoBuffer) transports[index]->release(std::span(&buffer, 1));
        continue;
      }
      if (packet.peer == kNoPeer && node.accepts_probe(packet)) packet.peer = transports[index]->adopt(packet);
      packet.peer = tag(index, packet.peer);
      if (outbox.full()) drain_outbox();
      node.on_packet(packet, now_ns(), &outbox);
    }
    drain_outbox();
  }
}

void LocalSwitch::Core::drain_outbox() {
  for (TxPacket packet : outbox.sends()) {
    const uint32_t index = transport_of(packet.peer);
    packet.peer = untag(packet.peer);
    transports[index]->send(std::span(&packet, 1));
  }
  for (const BufferId tagged : outbox.releases()) {
    const BufferId buffer = untag(tagged);
    transports[transport_of(tagged)]->release(std::span(&buffer, 1));
  }
  outbox.clear();
}

void LocalSwitch::Core::pump_control() {
  for (int fd = 0; (fd = ::accept4(*listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    const ConnId id = next_connection++;
    connections[id].fd = Fd(fd);
    watch(fd, EPOLLIN);
    membership->on_open(id, "127.0.0.1", now_ns());
  }
  std::vector<ConnId> ids;
  for (auto& [id, connection] : connections) ids.push_back(id);
  for (const ConnId id : ids) read(id, connections.at(id));
  if (door) door->serve(now_ns());
  if (membership->poll_timer() <= now_ns()) membership->on_timer(now_ns());
}

void LocalSwitch::Core::read(ConnId id, Connection& connection) {
  std::byte bytes[4096];
  const ssize_t got = ::recv(*connection.fd, bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    membership->on_close(id, got == 0 ? "" : "reset", now_ns());
    connections.erase(id);
    return;
  }
  connection.parser.push(std::span(bytes, static_cast<size_t>(got)));
  control::Message message;
  while (true) {
    switch (connection.parser.next(&message)) {
      case control::Parser::Next::kMessage: membership->on_message(id, message, now_ns()); continue;
      case control::Parser::Next::kError: membership->on_malformed(id, connection.parser.error(), now_ns()); return;
      case control::Parser::Next::kMore: return;
    }
  }
}

// Does what Membership decided. Frames are small, so a socket that does not take one is a test's fault.
void LocalSwitch::Core::obey() {
  ConnId id = 0;
  control::Message message;
  Membership::Action action;
  std::string line;
  bool more = true;
  while (more) {
    more = false;
    while (membership->poll_action(&action)) {
      more = true;
      if (action.kind == Membership::Action::kAdmit) {
        membership->on_admitted(action.job, admit(action.plan), now_ns());
      } else {
        remove(action.job);
      }
    }
    while (membership->poll_send(&id, &message)) {
      more = true;
      std::vector<std::byte> frame;
      control::encode(message, &frame);
      const auto found = connections.find(id);
      if (found != connections.end()) (void)!::send(*found->second.fd, frame.data(), frame.size(), MSG_NOSIGNAL);
    }
    while (membership->poll_close(&id)) {
      more = true;
      const auto found = connections.find(id);
      if (found == connections.end()) continue;
      ::shutdown(*found->second.fd, SHUT_WR);
      connections.erase(found);
    }
  }
  while (membership->poll_log(&line)) {
  }
}

Admission LocalSwitch::Core::admit(const JobPlan& plan) {
  Job& job = jobs[plan.job];
  job.trees = plan.trees;
  job.token = plan.token;
  const ShmShape shape = ShmShape::make(plan.trees, plan.window, plan.payload_bytes);
  auto arena = ShmArena::make(shape.result_bytes);
  if (!arena.ok()) return {.status = arena.status()};
  job.arena = arena.value();
  Admission admission;
  for (uint32_t t = 0; t < plan.trees; ++t) {
    TreeSpec spec{.job = plan.job,
                  .token = plan.token,
                  .tree = static_cast<uint8_t>(t),
                  .window = plan.window,
                  .payload_bytes = plan.payload_bytes};
    for (uint16_t rank = 0; rank < plan.ranks; ++rank) spec.child_ranks.push_back({rank});
    const Status status = node.admit(spec, job.arena->bytes().subspan(t * spec.arena_bytes()));
    if (!status.ok()) return {.status = status};
    admission.trees.push_back({.port = udp_port, .lane = 0});
  }
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
    if (!plan.shm[rank]) continue;
    ShmTicket ticket;
    auto port = ShmPort::make(shape, job.arena, &ticket);
    if (!port.ok()) return {.status = port.status()};
    job.ports.push_back(shm_hub->attach(std::move(port.value())));
    door->offer({.token = plan.token, .rank = rank, .lane = 0}, std::move(ticket));
    admission.shm_socket = door->name();
  }
  return admission;
}

void LocalSwitch::Core::remove(uint32_t handle) {
  const auto found = jobs.find(handle);
  if (found == jobs.end()) return;
  Job& job = found->second;
  for (uint32_t t = 0; t < job.trees; ++t) {
    while (node.remove(handle, static_cast<uint8_t>(t), &outbox)) drain_outbox();
    drain_outbox();
  }
  for (const PeerId port : job.ports) shm_hub->detach(port);
  if (door) door->withdraw_all(job.token);
  jobs.erase(found);
}

void LocalSwitch::Core::watch(int fd, uint32_t events) {
  epoll_event wanted{};
  wanted.events = events;
  GATUN_CHECK(::epoll_ctl(*epoll, EPOLL_CTL_ADD, fd, &wanted) == 0);
}

// Blocks until something is there, at most until the next timer. Transports ask to be watched edge-triggered.
void LocalSwitch::Core::wait() {
  bool quiet = true;
  for (const auto& transport : transports) {
    if (transport) quiet &= transport->prepare_wait();
  }
  epoll_event events[16];
  if (quiet) ::epoll_wait(*epoll, events, 16, 5);
  for (const auto& transport : transports) {
    if (transport) transport->finish_wait();
  }
}

}  // namespace gatun
