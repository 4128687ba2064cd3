#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <sstream>

#include "host/fallback/mesh.h"

namespace gatun {
namespace {

constexpr const char* kCardVersion = "gatun-card-2";
constexpr size_t kCookieDigits = 32;
constexpr uint16_t kAnyPort = 7117;  // of `towards` without a port: only its route matters

std::string random_cookie() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string cookie;
  for (int half = 0; half < 2; ++half) {
    for (uint64_t bits = random_u64(), i = 0; i < kCookieDigits / 2; ++i, bits >>= 4) cookie += kDigits[bits & 15];
  }
  return cookie;
}

// Without anything that would end a word on the card, or a line in a log.
std::string one_word(std::string name) {
  for (char& c : name) {
    if (c <= ' ' || c > '~') c = '_';
  }
  return name.empty() ? "unknown" : name;
}

template <typename T>
bool number(const std::string& text, T* value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// The local address that a packet to this endpoint would carry. Nothing is sent.
Result<Endpoint> local_towards(const Endpoint& towards) {
  const Fd fd(::socket(towards.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_error("create a socket", errno);
  if (::connect(*fd, towards.address(), towards.size) != 0) return system_error("find a route to " + towards.text(), errno);
  Endpoint local;
  local.size = sizeof local.storage;
  if (::getsockname(*fd, local.address(), &local.size) != 0) return system_error("read the local address", errno);
  local.set_port(0);
  return local;
}

}  // namespace

std::string MeshCard::encode() const {
  std::ostringstream text;
  text << kCardVersion << ' ' << endpoint.ip() << ' ' << endpoint.port() << ' ' << one_word(host) << ' ' << pid << ' '
       << cookie;
  return text.str();
}

Result<MeshCard> MeshCard::decode(const std::string& text) {
  auto wrong = [&](const std::string& why) {
    return Status(Code::kInternal, "a rank published '" + one_word(text.substr(0, 100)) + "' as its card, " + why);
  };
  std::istringstream words(text);
  std::string version, ip, port_text, pid_text, more;
  MeshCard card;
  words >> version >> ip >> port_text >> card.host >> pid_text >> card.cookie;
  if (version != kCardVersion) return wrong("which is not one of this version: give all ranks the same version of Gatun");
  uint16_t port = 0;
  if (!number(port_text, &port) || port == 0) return wrong("whose port is not a number from 1 to 65535");
  if (!number(pid_text, &card.pid)) return wrong("whose process id is not a number");
  if (card.cookie.size() != kCookieDigits || card.cookie.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return wrong("whose cookie is not 32 hexadecimal digits");
  }
  if (words >> more) return wrong("with something behind its end");
  Result<Endpoint> endpoint = Endpoint::parse(ip, port);
  if (!endpoint.ok()) return wrong("whose address is none");
  card.endpoint = endpoint.value();
  return card;
}

std::string MeshCard::text(uint32_t rank) const {
  return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(pid) + ")";
}

Result<std::unique_ptr<MeshListener>> MeshListener::open(const std::string& towards) {
  Result<std::vector<Endpoint>> endpoints = resolve(towards, kAnyPort);
  if (!endpoints.ok()) return endpoints.status();
  Status failed;
  for (const Endpoint& endpoint : endpoints.value()) {
    Result<Endpoint> local = local_towards(endpoint);
    if (!local.ok()) {
      failed = local.status();
      continue;
    }
    Fd fd(::socket(local->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return system_error("create a socket", errno);
    if (::bind(*fd, local->address(), local->size) != 0 || ::listen(*fd, SOMAXCONN) != 0) {
      failed = system_error("listen at " + local->ip(), errno);
      continue;
    }
    MeshCard card;
    card.endpoint.size = sizeof card.endpoint.storage;
    if (::getsockname(*fd, card.endpoint.address(), &card.endpoint.size) != 0) {
      return system_error("read the local address", errno);
    }
    card.host = one_word(host_name());
    card.pid = static_cast<uint32_t>(::getpid());
    card.cookie = random_cookie();
    return std::unique_ptr<MeshListener>(new MeshListener(std::move(fd), std::move(card)));
  }
  return failed;
}

}  // namespace gatun
