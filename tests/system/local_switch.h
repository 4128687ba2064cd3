// LocalSwitch: a switch with its controller in one thread of the test's own process, on a free port of the loopback
// interface.
//
// It is gatund without its settings, lanes and care: Membership, one Node, one UdpHub and one ShmHub, pumped by a loop.
// Tests choose the first chunk and operation numbers, stop it as a kill would, and put faults on its side of the data path.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "host/transport/transport.h"
#include "protocols/membership.h"

namespace gatun {

struct LocalSwitchOptions {
  bool shm = true;
  bool udp = true;
  int64_t first_seq = -1;
  uint32_t first_op = 0;
  TimeNs keepalive = 30 * kSecond;
  TimeNs stall_wait = 200 * kMs;
  // Deaf on the data path to packets for which this is true.
  std::function<bool(const RxPacket&)> deaf;
};

class LocalSwitch {
 public:
  explicit LocalSwitch(LocalSwitchOptions options = {});
  ~LocalSwitch();  // as kill -9: connections close without a word

  uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void stop(const std::string& text);  // as SIGTERM: jobs are told
  uint32_t jobs() const { return jobs_; }
  uint32_t connections() const { return connections_; }
  uint32_t trees() const { return trees_; }

 private:
  struct Core;
  void loop();

  std::unique_ptr<Core> core_;
  uint16_t port_ = 0;
  std::atomic<bool> quit_{false}, stop_{false};
  std::string stop_text_;
  std::atomic<uint32_t> jobs_{0}, trees_{0}, connections_{0};
  std::thread thread_;
};

}  // namespace gatun
