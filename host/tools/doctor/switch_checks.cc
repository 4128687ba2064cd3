#include "host/tools/doctor/switch_checks.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/tools/version.h"
#include "host/transport/dpdk_frame.h"
#include "host/transport/udp_socket.h"
#include "protocols/control.h"
#include "protocols/packet.h"

namespace gatun {
namespace {

constexpr int kConnectTimeoutMs = 2000;
constexpr TimeNs kPatience = 2 * kSecond;  // a gatund answers at once, and then every 500 ms

// The first message on a connection. kTimeout: nothing came.
Result<control::Message> hear(int fd) {
  const TimeNs deadline = now_ns() + kPatience;
  control::Parser parser;
  control::Message message;
  while (true) {
    switch (parser.next(&message)) {
      case control::Parser::Next::kMessage: return message;
      case control::Parser::Next::kError: return Status(Code::kRefused, parser.error());
      case control::Parser::Next::kMore: break;
    }
    const TimeNs left = deadline - now_ns();
    pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&watched, 1, static_cast<int>(left / kMs + 1)) == 0) {
      return Status(Code::kTimeout,
                    "takes connections and says nothing for " + format_duration(kPatience) + ": it is stopped, or hangs");
    }
    std::byte bytes[4096];
    const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got == 0) return Status(Code::kSwitchLost, "closes the connection without a word");
    if (got > 0) parser.push(std::span(bytes, static_cast<size_t>(got)));
    if (got < 0 && errno != EAGAIN && errno != EINTR) return system_error("read", errno);
  }
}

Result<control::Message> ask(int fd, const SettingValues& settings, const std::string& job) {
  control::Join join{.job = job,
                     .rank = 0,
                     .size = 2,
                     .trees = settings.trees,
                     .window = settings.window,
                     .payload_bytes = settings.payload_bytes,
                     .pid = static_cast<uint32_t>(::getpid()),
                     .host = host_name(),
                     .host_identity = host_identity(),
                     .software = "gatun " + version_text()};
  control::transport_choice(settings.transport == "dpdk" ? "udp" : settings.transport, &join.transport);
  std::vector<std::byte> bytes;
  control::encode(join, &bytes);
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
    return system_error("write", errno);
  }
  return hear(fd);
}

void no_connection(const std::string& address, const Status& status, Section* section) {
  std::string host;
  uint16_t port = 0;
  const bool known = split_address(address, kDefaultPort, &host, &port).ok();
  const std::string what = std::string("no gatund: ") + status.message();
  if (!known || status.code() != Code::kSwitchLost) {
    section->missing(
        "control", what,
        status.code() == Code::kTimeout
            ? fmt::format("on {}: iptables -I INPUT -p tcp --dport {} -j ACCEPT; or set GATUN_ADDRESS", host, port)
            : "GATUN_ADDRESS=HOST:PORT");
  } else {
    section->missing("control", what,
                     fmt::format("on its host: gatund --listen {} --port {}; or set GATUN_ADDRESS",
                                 host == "localhost" ? "127.0.0.1" : host, port));
  }
}

}  // namespace

uint32_t Route::packet_bytes(uint32_t payload) const {
  return payload + uint32_t{kHeaderBytes} + frame_header_bytes(peer.family() == AF_INET6) - kEthernetBytes;
}

Result<Route> find_route(const std::string& address) {
  Result<std::vector<Endpoint>> endpoints = resolve(address, kDefaultPort);
  if (!endpoints.ok()) return endpoints.status();
  Status status;
  for (const Endpoint& peer : endpoints.value()) {
    Result<Fd> fd = make_udp_socket(peer.family(), {});
    status = fd.ok() ? connect_udp(*fd.value(), peer) : fd.status();
    if (!status.ok()) continue;
    Route route{.peer = peer, .local = local_address(*fd.value()), .interface = {}};
    route.payload_bytes = udp_payload_bytes_max(*fd.value(), peer.family(), true);
    for (const Device& device : network_devices()) {
      const auto& own = device.addresses;
      if (std::find(own.begin(), own.end(), route.local.ip()) != own.end()) route.interface = device;
    }
    return route;
  }
  return status;
}

std::string check_control(const SettingValues& settings, const std::string& job, Section* section) {
  const Result<Fd> connection = connect_within(settings.address, kConnectTimeoutMs);
  if (!connection.ok()) {
    no_connection(settings.address, connection.status(), section);
    return "";
  }
  const Result<control::Message> answer = ask(*connection.value(), settings, job);
  const auto* refused = answer.ok() ? std::get_if<control::Refused>(&answer.value()) : nullptr;
  if (answer.ok() && refused == nullptr) {
    Endpoint peer;
    peer.size = sizeof peer.storage;
    ::getpeername(*connection.value(), peer.address(), &peer.size);
    section->ok("control", peer.text() + " answers on TCP, and takes jobs of these settings");
    section->ok("version", fmt::format("gatun {} here; both ends speak control protocol {}", version_text(),
                                       unsigned{control::kVersion}));
    return peer.text();
  }
  const std::string what = settings.address + " " + (refused ? "refuses: " + refused->text : answer.status().message());
  if (refused) {
    section->missing("refusal", what, "");
  } else if (answer.status().code() == Code::kTimeout) {
    section->missing("control", what, "on its host: kill -CONT $(pidof gatund), or start it again");
  } else if (answer.status().code() == Code::kRefused) {
    section->missing("version", what,
                     "gatund --version there and gatun --version here must say the same; or set GATUN_ADDRESS");
  } else {
    section->missing("control", what, "the log of gatund there says why");
  }
  return "";
}

}  // namespace gatun
