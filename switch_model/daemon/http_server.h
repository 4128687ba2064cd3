// HttpServer: answers GET and HEAD, one request per connection, on one thread. Everything is bounded: connections, the
// size of a request, the time from accept to the end. A caller that comes when all places are taken gets that of the one
// who has held one longest, so that callers who hang keep nobody out.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "host/base/os.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

struct HttpAnswer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  using Handler = std::function<HttpAnswer(std::string_view path, std::string_view query)>;

  // Port 0 takes any. The error is one sentence without the fix.
  static Result<std::unique_ptr<HttpServer>> make(const Endpoint& endpoint);
  ~HttpServer();

  const Endpoint& endpoint() const { return endpoint_; }
  // handler is called by the server's thread, one call at a time. Returns at once; the destructor ends it, as soon as the
  // handler returns.
  Status start(const char* thread_name, Handler handler);

 private:
  struct Connection {
    enum State : uint8_t { kReading, kWriting, kEnding };  // kEnding: all is sent, the caller has not closed
    Fd fd;
    State state = kReading;
    std::string in, out;
    size_t sent = 0;
    TimeNs deadline = 0;
  };

  HttpServer(Fd listener, Fd wake, const Endpoint& endpoint)
      : listener_(std::move(listener)), wake_(std::move(wake)), endpoint_(endpoint) {}
  void loop();
  void accept_all();
  bool advance(Connection& connection);
  bool read(Connection& connection);
  bool write(Connection& connection);
  std::string respond(std::string_view request) const;

  Fd listener_;
  Fd wake_;
  Endpoint endpoint_;
  Handler handler_;
  std::list<Connection> connections_;  // in the order of their coming
  TimeNs accept_at_ = 0;               // not before
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace gatun
