#include "switch_model/daemon/http_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace gatun {
namespace {

constexpr size_t kConnectionsMax = 16;
constexpr size_t kRequestBytesMax = 8192;
constexpr TimeNs kConnectionTime = 5 * kSecond;  // from accept to the end
constexpr TimeNs kAcceptPause = 1 * kMs;         // so that who asks without pause takes little of the processor
constexpr TimeNs kNoDescriptorsPause = 100 * kMs;
constexpr int kBacklog = 64;
constexpr int kNice = 10;  // whoever asks, and however often, comes after the lanes

const char* reason(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    default: return "Service Unavailable";
  }
}

std::string write_answer(const HttpAnswer& answer, bool with_body) {
  std::string out = "HTTP/1.1 " + std::to_string(answer.code) + " " + reason(answer.code) +
                    "\r\nContent-Type: " + answer.type + "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                    (answer.code == 405 ? "\r\nAllow: GET, HEAD" : "") + "\r\nConnection: close\r\n\r\n";
  return with_body ? out + answer.body : out;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::make(const Endpoint& endpoint) {
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return system_error("create an event descriptor", errno);
  Fd fd(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd.valid() || ::setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(*fd, endpoint.address(), endpoint.size) != 0 || ::listen(*fd, kBacklog) != 0) {
    return system_error("listen on TCP " + endpoint.text(), errno);
  }
  Endpoint bound;
  bound.size = sizeof bound.storage;
  ::getsockname(*fd, bound.address(), &bound.size);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(fd), std::move(wake), bound));
}

HttpServer::~HttpServer() {
  stop_ = true;
  const uint64_t one = 1;
  (void)!::write(*wake_, &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

Status HttpServer::start(const char* thread_name, Handler handler) {
  handler_ = std::move(handler);
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return Status(Code::kSystem, std::string("cannot start the thread for http: ") + error.what());
  }
  pthread_setname_np(thread_.native_handle(), thread_name);
  return {};
}

void HttpServer::loop() {
  (void)::setpriority(PRIO_PROCESS, 0, kNice);  // Linux: of this thread alone
  std::array<pollfd, kConnectionsMax + 2> polled;
  while (!stop_) {
    TimeNs next = kNever;
    size_t count = 0;
    polled[count++] = {.fd = *wake_, .events = POLLIN, .revents = 0};
    polled[count++] = {.fd = accept_at_ == 0 ? *listener_ : -1, .events = POLLIN, .revents = 0};
    if (accept_at_ != 0) next = accept_at_;
    for (const Connection& connection : connections_) {
      const short events = connection.state == Connection::kWriting ? POLLOUT : POLLIN;
      polled[count++] = {.fd = *connection.fd, .events = events, .revents = 0};
      next = std::min(next, connection.deadline);
    }
    const TimeNs left = std::max<TimeNs>(0, next - now_ns());
    (void)::poll(polled.data(), count, next == kNever ? -1 : static_cast<int>(left / kMs + 1));
    if (stop_) return;
    const TimeNs now = now_ns();
    size_t place = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++place) {
      const bool lives = now < it->deadline && (polled[place].revents == 0 || advance(*it));
      it = lives ? std::next(it) : connections_.erase(it);
    }
    if (accept_at_ <= now) accept_at_ = 0;
    if (polled[1].revents != 0) accept_all();
  }
}

// No more than there are places for, and then not at once again: a flood of callers holds up neither those who have a place
// nor the rest of this machine.
void HttpServer::accept_all() {
  for (size_t i = 0; i < kConnectionsMax; ++i) {
    Fd fd(::accept4(*listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) accept_at_ = now_ns() + kNoDescriptorsPause;
      return;
    }
    accept_at_ = now_ns() + kAcceptPause;
    if (connections_.size() == kConnectionsMax) connections_.pop_front();
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.deadline = now_ns() + kConnectionTime;
    if (!advance(connection)) connections_.pop_back();  // most callers ask at once
  }
}

// False: the connection is done with.
bool HttpServer::advance(Connection& connection) {
  if (connection.state == Connection::kReading && !read(connection)) return false;
  if (connection.state == Connection::kWriting && !write(connection)) return false;
  if (connection.state != Connection::kEnding) return true;
  // A close with unread bytes could take back what the caller has not read yet.
  char rest[4096];
  const ssize_t got = ::recv(*connection.fd, rest, sizeof rest, 0);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

bool HttpServer::read(Connection& connection) {
  char bytes[4096];
  const ssize_t got = ::recv(*connection.fd, bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  connection.in.append(bytes, static_cast<size_t>(got));
  const size_t end = connection.in.find("\r\n\r\n");
  if (end != std::string::npos) {
    connection.out = respond(std::string_view(connection.in).substr(0, end));
  } else if (connection.in.size() > kRequestBytesMax) {
    connection.out = write_answer({.code = 431, .body = "the request is too long\n"}, true);
  } else {
    return true;
  }
  connection.state = Connection::kWriting;
  return true;
}

bool HttpServer::write(Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const ssize_t sent = ::send(*connection.fd, connection.out.data() + connection.sent,
                                connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    connection.sent += static_cast<size_t>(sent);
  }
  (void)::shutdown(*connection.fd, SHUT_WR);
  connection.state = Connection::kEnding;
  return true;
}

// request: without the empty line at its end.
std::string HttpServer::respond(std::string_view request) const {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == line.npos || second == line.npos || line.substr(second, 8) != " HTTP/1.") {
    return write_answer({.code = 400, .body = "this is no HTTP request\n"}, true);
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  if (method != "GET" && method != "HEAD") {
    return write_answer({.code = 405, .body = "only GET and HEAD are answered\n"}, true);
  }
  const size_t question = std::min(target.find('?'), target.size());
  const std::string_view query = target.substr(std::min(question + 1, target.size()));
  return write_answer(handler_(target.substr(0, question), query), method == "GET");
}

}  // namespace gatun
