// ControlClient: this rank's membership in its job. join() and start() block; then a small thread keeps the connection
// alive, answers the controller, and tells Events what it said.
//
// Events are called by that thread. send() may be called by any thread and never blocks.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/lib/control_connection.h"

namespace gatun {

class ControlClient {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    virtual void on_end(const Status& status) = 0;  // the job is over; nothing follows
    virtual void on_mismatch(uint32_t op, const std::string& text) = 0;
    virtual void on_left(uint32_t started, const std::string& text) = 0;  // a rank, after so many operations
    virtual void on_stall_text(uint32_t op, const std::string& text) = 0;
    virtual control::KeepAlive progress() = 0;
  };

  struct Patience {
    const std::atomic<bool>* stop = nullptr;  // set from outside, it ends join() and ready() soon; null: nothing does
    TimeNs silence = kNever;                  // a controller that says nothing for this long before the start is gone
    std::function<void(const std::string& text)> on_waiting;  // for whom the job waits, again and again
  };
  ControlClient(std::unique_ptr<ControlConnection> connection, Patience patience)
      : connection_(std::move(connection)), patience_(std::move(patience)) {}
  // Ends without leave if leave() was not called: the controller then tells the others that this rank is lost.
  ~ControlClient();

  const ControlConnection& connection() const { return *connection_; }

  // Sends the request and waits for all ranks and the admission. cards: what PEERS said before it, also on an error.
  Result<control::Admit> join(const control::Join& request, TimeNs deadline, std::vector<std::string>* cards);
  // Between the two: gives the switch this rank's end of a queue pair, and returns the switch's.
  Result<std::string> attach(uint8_t lane, const std::string& card, TimeNs deadline);
  // Says that every data path is proven and waits for the others.
  Status ready(TimeNs deadline);
  // Before the start: has the job ended already? And if not, gives up for all.
  Status ended();
  void give_up(const Status& reason);

  Status run(Events* events, TimeNs keepalive);
  void send(control::Message message);
  // Orderly end: tells the controller and stops the thread. Bounded by `within`.
  void leave(TimeNs within);

 private:
  Status hear(control::Message* message, TimeNs deadline);
  void loop();
  bool on_message(const control::Message& message);
  bool take_outbox();
  void stop();

  std::unique_ptr<ControlConnection> connection_;
  Patience patience_;
  std::string waits_for_;  // the controller's last word on it
  Events* events_ = nullptr;
  TimeNs keepalive_ = 0;
  Fd wake_;
  std::thread thread_;

  std::mutex mutex_;
  std::vector<control::Message> outbox_;
  bool stop_ = false;
};

}  // namespace gatun
