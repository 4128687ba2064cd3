// RendezvousServer: rank 0's side of the rendezvous, one thread that sleeps in poll. Connections that say no HELLO, a wrong
// one, or too much are closed and harm nobody; the values are kept until the server ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host/base/os.h"

namespace gatun {

class RendezvousServer {
 public:
  RendezvousServer(Fd listener, std::string job, uint32_t ranks);
  ~RendezvousServer();

  // Of rank 0 itself.
  void set(const std::string& key, const std::string& value);
  bool get(const std::string& key, TimeNs deadline, std::string* value);
  // Until every other rank has come and gone. Those that came may take a little longer than the deadline: they ask who has
  // not. Not for long after *stop is set (null: never).
  void wait_for_ranks(TimeNs deadline, const std::atomic<bool>* stop);

 private:
  struct Client {
    Fd fd;
    TimeNs since = 0;
    uint32_t rank = 0;  // 0: has not said HELLO
    std::vector<std::byte> in, out;
    std::vector<std::string> keys;  // that it has set
    bool asks = false;              // an open GET
    std::string key;
    TimeNs until = 0;
    bool bye = false;  // it ended in order
    bool closed = false;
    bool last_word = false;  // close when `out` is written
  };

  void loop();
  void accept_all(TimeNs now);
  void read(Client& client, TimeNs now);
  bool handle(Client& client, std::span<const std::byte> frame, TimeNs now);
  bool hello(Client& client, std::span<const std::byte> frame);
  void answer_gets(TimeNs now);
  void write(Client& client);
  void end(Client& client);

  const Fd listener_;
  const std::string job_;
  const uint32_t ranks_;
  Fd wake_;
  std::list<Client> clients_;  // the thread's

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  size_t stored_bytes_ = 0;
  std::set<uint32_t> came_, gave_, left_;  // gave_: a value; a rank that dies before all have is forgotten
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace gatun
