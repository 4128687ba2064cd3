// TestNet: a network namespace of this process's own with a pair of veth interfaces, va and vb, and more behind vb if they
// are wanted. It is gone with its threads and sockets, however the process ends.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace gatun::conformance {

class TestNet {
 public:
  // Why there can be none: not root, or no such interfaces; "" if nothing speaks against it.
  static std::string missing();

  explicit TestNet(uint32_t mtu = 1500);
  ~TestNet();

  // Runs something in the namespace: sockets that it makes stay there. Blocks, in a thread of the namespace.
  void run(const std::function<void()>& work);
  // Begins it only; finish() waits.
  void start(std::function<void()> work);
  bool done() const;
  void finish();

  // Another interface on the network of va, e1 and so on: vb then only leads there.
  std::string add_end();

  // A command in the namespace, such as "ip link set va down". True: it exited with 0.
  bool command(const std::string& line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gatun::conformance
