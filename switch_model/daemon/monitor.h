// Monitor: gatund's /metrics and /health, answered by a thread that cannot disturb the others: it asks, they answer when
// they come to it (the lanes between two bursts, without a lock), and one answer serves all who call within kFreshFor.
//
// The control thread watches wait_fd() and calls answer(). Made before the lanes start to serve, gone before they go.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/base/log.h"
#include "host/base/os.h"
#include "host/base/settings.h"
#include "switch_model/daemon/http_server.h"
#include "switch_model/daemon/lane.h"
#include "switch_model/daemon/snapshot.h"

namespace gatun {

class Monitor {
 public:
  // Null when the setting metrics is off, or when its default address cannot be had, which is logged; an address that was
  // named and cannot be had is an error. The lanes outlive this.
  static Result<std::unique_ptr<Monitor>> make(const Settings& settings, std::vector<Lane*> lanes, const Log* log);
  ~Monitor();

  std::string url() const { return "http://" + server_->endpoint().text(); }
  Status start();

  // Control thread.
  int wait_fd() const { return *asked_; }
  void answer(ControlFacts facts);
  void on_stop() { stopping_ = true; }  // from now on the control thread need not answer

 private:
  Monitor(TimeNs stall_limit, std::vector<Lane*> lanes, Fd asked, std::unique_ptr<HttpServer> server);
  HttpAnswer respond(std::string_view path, std::string_view query);
  void refresh();
  bool ask_control(TimeNs deadline);
  bool ask_lane(Lane* lane, TimeNs deadline);

  TimeNs stall_limit_;
  std::vector<Lane*> lanes_;
  Fd asked_;  // eventfd: the control thread shall answer
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leaving_{false};  // ends the waits of the server's thread

  std::mutex mutex_;  // of what the control thread hands over; no lane knows it
  ControlFacts handed_;
  uint64_t answers_ = 0;

  // The server's thread.
  ControlFacts facts_;
  Snapshot snapshot_;
  std::string metrics_;  // the text of snapshot_, once somebody wanted it
  TimeNs fresh_until_ = 0;
  std::unique_ptr<HttpServer> server_;  // goes first: its thread uses the rest
};

}  // namespace gatun
