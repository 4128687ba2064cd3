#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <vector>

#include "switch_model/daemon/http_server.h"

using namespace gatun;

namespace {

struct Server {
  Server() {
    auto made = HttpServer::make(Endpoint::parse("127.0.0.1", 0).value());
    REQUIRE(made.ok());
    server = std::move(made.value());
    REQUIRE(server
                ->start("http-test",
                        [this](std::string_view path, std::string_view query) {
                          return HttpAnswer{.code = path == "/none" ? 404 : 200,
                                            .body = std::string(path) + "|" + std::string(query) + filler};
                        })
                .ok());
  }
  Fd call() const {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(*fd, server->endpoint().address(), server->endpoint().size) == 0);
    return fd;
  }
  std::string ask(const std::string& request) const {
    const Fd fd = call();
    REQUIRE(::send(*fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
    return rest(fd);
  }
  // All that comes until the server closes.
  static std::string rest(const Fd& fd) {
    std::string text;
    char bytes[4096];
    ssize_t got;
    while ((got = ::recv(*fd, bytes, sizeof bytes, 0)) > 0) text.append(bytes, static_cast<size_t>(got));
    return text;
  }
  std::string filler;  // written before the first call
  std::unique_ptr<HttpServer> server;
};

std::string code(const std::string& answer) {
  return answer.substr(0, 12);
}

}  // namespace

TEST_CASE("make__an_address_in_use_is_an_error", "[http]") {
  const Server s;
  const auto second = HttpServer::make(s.server->endpoint());
  REQUIRE_FALSE(second.ok());
  CHECK(std::string(second.status().message()).find(s.server->endpoint().text()) != std::string::npos);
}

TEST_CASE("respond__paths_queries_and_methods", "[http]") {
  const Server s;
  const std::string got = s.ask("GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(code(got) == "HTTP/1.1 200");
  CHECK(got.find("\r\nContent-Length: 6\r\n") != got.npos);
  CHECK(got.substr(got.find("\r\n\r\n") + 4) == "/a|b=c");
  const std::string head = s.ask("HEAD /a HTTP/1.1\r\n\r\n");
  CHECK(head.find("\r\nContent-Length: 3\r\n") != head.npos);
  CHECK(head.substr(head.find("\r\n\r\n") + 4).empty());
  CHECK(code(s.ask("GET /none HTTP/1.0\r\n\r\n")) == "HTTP/1.1 404");
  CHECK(code(s.ask("POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")) == "HTTP/1.1 405");
}

TEST_CASE("respond__what_is_no_request", "[http]") {
  const Server s;
  for (const char* request : {"\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / FTP/1.1\r\n\r\n", "GET  \r\n\r\n"}) {
    INFO(request);
    CHECK(code(s.ask(request)) == "HTTP/1.1 400");
  }
  CHECK(code(s.ask(std::string(9000, 'a'))) == "HTTP/1.1 431");
  CHECK(s.ask("GET / HTTP/1.1\r\n\r\n" + std::string(100000, 'x')).find("200 OK") != std::string::npos);
}

TEST_CASE("write__an_answer_larger_than_the_sockets_buffers_comes_whole", "[http]") {
  Server s;
  s.filler.assign(20 << 20, 'f');
  const std::string got = s.ask("GET /a HTTP/1.1\r\n\r\n");
  CHECK(got.size() - got.find("\r\n\r\n") - 4 == s.filler.size() + 3);
}

TEST_CASE("accept_all__callers_who_hang_keep_nobody_out", "[http]") {
  const Server s;
  std::vector<Fd> hanging;
  for (int i = 0; i < 100; ++i) hanging.push_back(s.call());
  CHECK(code(s.ask("GET / HTTP/1.1\r\n\r\n")) == "HTTP/1.1 200");
  CHECK(Server::rest(hanging[0]).empty());  // it had to go
}

TEST_CASE("destructor__does_not_wait_for_callers", "[http]") {
  Fd silent, half;
  {
    Server s;
    s.filler.assign(20 << 20, 'f');
    silent = s.call();
    half = s.call();
    REQUIRE(::send(*half, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    pollfd readable{.fd = *half, .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&readable, 1, 30'000) == 1);  // and reads nothing of it
  }
  CHECK(Server::rest(silent).empty());
}
