// dpdk_load: four workers of a job on one DPDK device, for measuring what answers them. They do all that workers do on the
// wire (windows, repeats, checksums) and nothing with tensors, so that they take less time than what they measure. One
// thread drives them all and never sleeps.
//
//   dpdk_load DEVICE PAYLOAD_BYTES SECONDS gatund ADDRESS   a job at gatund, which sends each chunk's sum back
//   dpdk_load DEVICE PAYLOAD_BYTES SECONDS echo             no job; the other end swaps source and target of all it gets
//
// Prints the answers per second, which are the packets that the other end took in; and how many packets were sent twice.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "host/lib/attach.h"
#include "host/lib/control_client.h"
#include "host/transport/dpdk_module.h"
#include "protocols/wire.h"
#include "protocols/worker.h"

namespace {

using namespace gatun;

constexpr uint32_t kRanks = 4;
constexpr uint32_t kWindow = 64;
constexpr uint32_t kBuffers = 1024;  // of a link: received packets unreleased at once
constexpr TimeNs kPatience = 20 * kSecond;
constexpr TimeNs kWarm = 500 * kMs;              // windows grow, caches fill
constexpr uint64_t kChunks = uint64_t{1} << 48;  // of the one operation: more than ever pass

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result.value());
  std::fprintf(stderr, "dpdk_load: %s\n", result.status().message());
  std::exit(1);
}

void must(const Status& status) {
  must(status.ok() ? Result<bool>(true) : Result<bool>(status));
}

// What a worker has after it joined; in an echo, as if it had.
struct Seat {
  std::unique_ptr<ControlClient> client;
  std::unique_ptr<Transport> link;
  control::Admit admit;
};

// gatund runs with a keepalive that is longer than a measurement, so nothing is said after the start.
Seat join(DpdkDevice* device, const std::string& address, uint32_t rank, uint32_t payload_bytes) {
  const TimeNs deadline = now_ns() + kPatience;
  Seat seat;
  seat.client = std::make_unique<ControlClient>(must(ControlConnection::connect(address, deadline, kSecond)),
                                                ControlClient::Patience{});
  control::Join request{.job = "load", .rank = rank, .size = kRanks, .window = kWindow, .payload_bytes = payload_bytes};
  request.transport = control::TransportChoice::kUdp;
  request.path_payload_bytes = device->payload_bytes_max();
  request.receive_bytes = device->receive_bytes();
  request.host = request.host_identity = "rank " + std::to_string(rank);
  std::vector<std::string> cards;
  seat.admit = must(seat.client->join(request, deadline, &cards));
  Attachment paths = must(attach({.admit = &seat.admit,
                                  .controller = seat.client->connection().peer(),
                                  .local = seat.client->connection().local(),
                                  .rank = rank,
                                  .device = device,
                                  .exchange = {},
                                  .wrap = {}},
                                 deadline));
  must(prove(seat.admit, paths, kPatience, nullptr));
  must(seat.client->ready(deadline));
  seat.link = std::move(paths.links[0]);
  return seat;
}

// The peer is this device itself: its own question for its own address comes back, and so does everything that follows.
Seat sit(DpdkDevice* device, uint32_t rank) {
  Seat seat;
  seat.link = must(device->make_link(must(Endpoint::parse(device->ip(), kDefaultPort)), kBuffers, now_ns() + kPatience));
  seat.admit = {.job = 1, .window = kWindow};
  seat.admit.trees.push_back({.child = static_cast<uint8_t>(rank)});
  return seat;
}

class LoadWorker {
 public:
  // answer: what each element of an answer must be.
  LoadWorker(Seat seat, uint32_t payload_bytes, float value, float answer)
      : seat_(std::move(seat)),
        payload_(payload_bytes / sizeof(float), value),
        answer_(answer),
        worker_({.window = seat_.admit.window, .first_seq = seat_.admit.first_seq, .first_op = seat_.admit.first_op}) {
    worker_.submit(kChunks);
  }

  void turn() {
    const TimeNs now = now_ns();
    const int count = seat_.link->receive(burst_);
    std::array<BufferId, kBurst> buffers;
    for (int i = 0; i < count; ++i) {
      hear(burst_[i], now);
      buffers[static_cast<size_t>(i)] = burst_[i].buffer;
    }
    if (count > 0) seat_.link->release({buffers.data(), static_cast<size_t>(count)});
    Worker::Chunk chunk;
    while (count_ < packets_.size() && worker_.poll_send(now, &chunk)) packets_[count_++] = packet_of(chunk);
    if (count_ == 0) return;
    const auto taken = static_cast<size_t>(seat_.link->send({packets_.data(), count_}));
    std::move(packets_.begin() + static_cast<ptrdiff_t>(taken), packets_.begin() + static_cast<ptrdiff_t>(count_),
              packets_.begin());
    count_ -= taken;
  }
  uint64_t answers() const { return answers_; }
  uint64_t resent() const { return worker_.resent(); }

 private:
  void hear(const RxPacket& packet, TimeNs now) {
    Header header;
    const Decode decoded = decode(packet.head, packet.payload, packet.payload_bytes, false, &header);
    if (decoded != Decode::kOk || header.job != seat_.admit.job) return;
    if (header.type == PacketType::kStatus) return worker_.on_status(0, header.seq, now);
    if (header.type != PacketType::kResult && header.type != PacketType::kData) return;
    float value = 0;
    std::memcpy(&value, packet.payload + packet.payload_bytes - sizeof value, sizeof value);
    if (value != answer_) must(Status(Code::kInternal, "an answer is wrong: " + std::to_string(value)));
    const bool congested = packet.congested || header.flags & kFlagCongested;
    answers_ += worker_.on_result(0, header.seq, header.op, congested, now).verdict == Worker::Verdict::kNews;
  }

  TxPacket packet_of(const Worker::Chunk& chunk) {
    TxPacket packet{.payload = reinterpret_cast<const std::byte*>(payload_.data()),
                    .payload_bytes = static_cast<uint32_t>(payload_.size() * sizeof(float)),
                    .peer = 0};
    const Header header{.type = PacketType::kData,
                        .child = seat_.admit.trees[0].child,
                        .job = seat_.admit.job,
                        .seq = wire_seq(chunk.seq),
                        .op = static_cast<uint16_t>(chunk.op),
                        .contributors = 1,
                        .elems = static_cast<uint32_t>(payload_.size()),
                        .elem_type = Type::kF32};
    encode(header, packet.payload, packet.payload_bytes, true, packet.head);
    return packet;
  }

  Seat seat_;
  const std::vector<float> payload_;
  const float answer_;
  Worker worker_;
  std::array<RxPacket, kBurst> burst_;
  std::array<TxPacket, kBurst> packets_;  // the first count_ wait for the link
  size_t count_ = 0;
  uint64_t answers_ = 0;
};

struct Sum {
  uint64_t answers = 0, resent = 0;
};

Sum run_until(TimeNs end, std::vector<LoadWorker>& workers) {
  while (now_ns() < end) {
    for (LoadWorker& worker : workers) worker.turn();
  }
  Sum sum;
  for (const LoadWorker& worker : workers) {
    sum.answers += worker.answers();
    sum.resent += worker.resent();
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const bool echo = argc == 5 && std::strcmp(argv[4], "echo") == 0;
  if (!echo && (argc != 6 || std::strcmp(argv[4], "gatund") != 0)) {
    std::fprintf(stderr, "usage: dpdk_load DEVICE PAYLOAD_BYTES SECONDS echo | gatund ADDRESS\n");
    return 2;
  }
  const auto payload_bytes = static_cast<uint32_t>(std::atoi(argv[2]));
  const double seconds = std::atof(argv[3]);
  const auto device = must(open_dpdk(argv[1], {}));
  std::array<Seat, kRanks> seats;
  std::vector<std::thread> joiners;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    joiners.emplace_back(
        [&, rank] { seats[rank] = echo ? sit(device.get(), rank) : join(device.get(), argv[5], rank, payload_bytes); });
  }
  for (std::thread& joiner : joiners) joiner.join();
  std::vector<LoadWorker> workers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto value = static_cast<float>(rank + 1);
    workers.emplace_back(std::move(seats[rank]), payload_bytes, value, echo ? value : 10.0f);
  }
  const Sum before = run_until(now_ns() + kWarm, workers);
  const TimeNs since = now_ns();
  const Sum after = run_until(since + static_cast<TimeNs>(seconds * kSecond), workers);
  const double measured = static_cast<double>(now_ns() - since) / kSecond;
  std::printf("%.0f %llu\n", static_cast<double>(after.answers - before.answers) / measured,
              static_cast<unsigned long long>(after.resent - before.resent));
  return 0;
}
