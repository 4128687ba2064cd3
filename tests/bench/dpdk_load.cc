// dpdk_load: one worker's packets without protocol, for measuring what forwards them. A link on a DPDK device keeps a window
// of packets in flight to an address that sends each back, and prints how many came back per second.
//
//   dpdk_load DEVICE ADDRESS PORT PAYLOAD_BYTES WINDOW SECONDS
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "host/transport/dpdk_module.h"
#include "host/transport/waiter.h"

namespace {

using namespace gatun;

constexpr TimeNs kLost = 100 * kMs;  // without an answer for so long, the window is taken for lost

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result.value());
  std::fprintf(stderr, "dpdk_load: %s\n", result.status().message());
  std::exit(1);
}

uint64_t run(Transport& link, Waiter& waiter, uint32_t payload_bytes, uint32_t window, TimeNs duration) {
  std::vector<std::byte> payload(payload_bytes);
  std::vector<TxPacket> packets(kBurst,
                                TxPacket{.head = {}, .payload = payload.data(), .payload_bytes = payload_bytes, .peer = 0});
  RxPacket burst[kBurst];
  uint64_t came_back = 0;
  uint32_t in_flight = 0;
  const TimeNs end = now_ns() + duration;
  Backoff backoff;
  for (TimeNs now = now_ns(), heard = now; now < end; now = now_ns()) {
    const int count = link.receive(burst);
    for (int i = 0; i < count; ++i) link.release({&burst[i].buffer, 1});
    came_back += static_cast<uint64_t>(count);
    in_flight -= std::min(in_flight, static_cast<uint32_t>(count));
    if (count > 0) heard = now;
    if (now - heard > kLost) {
      in_flight = 0;
      heard = now;
    }
    const uint32_t room = std::min<uint32_t>(window - in_flight, kBurst);
    if (room > 0) in_flight += static_cast<uint32_t>(link.send({packets.data(), room}));
    if (count > 0) {
      backoff.reset();
    } else if (backoff.idle()) {
      waiter.wait(kMs);
      backoff.reset();
    }
  }
  return came_back;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: dpdk_load DEVICE ADDRESS PORT PAYLOAD_BYTES WINDOW SECONDS\n");
    return 2;
  }
  const auto device = must(open_dpdk(argv[1], {}));
  const Endpoint peer = must(Endpoint::parse(argv[2], static_cast<uint16_t>(std::atoi(argv[3]))));
  const auto link = must(device->make_link(peer, 1024, now_ns() + 10 * kSecond));
  const auto waiter = must(Waiter::make());
  if (!waiter->add(link.get()).ok()) return 1;
  const double seconds = std::atof(argv[6]);
  const uint64_t packets = run(*link, *waiter, static_cast<uint32_t>(std::atoi(argv[4])),
                               static_cast<uint32_t>(std::atoi(argv[5])), static_cast<TimeNs>(seconds * kSecond));
  std::printf("%.0f\n", static_cast<double>(packets) / seconds);
  return 0;
}
