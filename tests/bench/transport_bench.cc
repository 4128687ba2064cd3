// transport_bench: what the transports carry by themselves, without protocol and reduction.
//
// Four links keep a window of packets in flight to one hub, which answers each with as many bytes. Payloads start and end in
// the links' own memory, as a tensor does: udp gathers them from there, shm copies them into its arena; answers are copied
// out. Everybody sleeps when idle, as in real use. One line per transport and size; rates count both directions.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host/transport/shm.h"
#include "host/transport/udp.h"
#include "host/transport/waiter.h"

namespace gatun {
namespace {

using Clock = std::chrono::steady_clock;

struct Setup {
  std::unique_ptr<Transport> hub;
  std::vector<std::unique_ptr<Transport>> links;
  std::shared_ptr<ShmArena> results;  // shm
  std::vector<std::byte> plain_results;
};

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "transport_bench: %s\n", result.status().message());
    std::exit(1);
  }
  return std::move(result.value());
}

Setup make_udp(int links, uint32_t payload_bytes, uint32_t window, bool offload) {
  UdpOptions options{.buffers = 4096, .gso = offload, .gro = offload};
  Setup setup;
  auto hub = must(UdpHub::make(must(Endpoint::parse("127.0.0.1", 0)), options));
  for (int i = 0; i < links; ++i) setup.links.push_back(must(UdpLink::make(hub->local(), options)));
  setup.hub = std::move(hub);
  setup.plain_results.resize(size_t{2} * window * payload_bytes);
  return setup;
}

Setup make_shm(int links, uint32_t payload_bytes, uint32_t window) {
  Setup setup;
  const ShmShape shape = ShmShape::make(1, window, payload_bytes);
  setup.results = must(ShmArena::make(shape.result_bytes));
  auto hub = must(ShmHub::make({}));
  for (int i = 0; i < links; ++i) {
    ShmTicket ticket;
    hub->attach(must(ShmPort::make(shape, setup.results, &ticket)));
    setup.links.push_back(must(ShmLink::make(std::move(ticket))));
  }
  setup.hub = std::move(hub);
  return setup;
}

struct Load {
  uint32_t payload_bytes, window;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> answered{0}, lost{0};
};

// Keeps `window` packets in flight; what is not answered within 20 ms counts as lost.
void drive(Transport& link, Load& load) {
  auto waiter = must(Waiter::make());
  if (!waiter->add(&link).ok()) return;
  const size_t bytes = load.payload_bytes;
  std::vector<std::byte> tensor(bytes * 64), out(bytes * 64);
  std::vector<TxPacket> packets(kBurst);
  RxPacket burst[kBurst];
  Backoff backoff;
  uint64_t sent = 0, done = 0;
  while (!load.stop) {
    int count = 0;
    for (; count < kBurst && sent + count - done < load.window; ++count) {
      const uint64_t number = sent + count;
      TxPacket& packet = packets[count];
      std::memset(packet.head, 0, kHeaderBytes);
      packet.payload = tensor.data() + number % 64 * bytes;
      packet.payload_bytes = load.payload_bytes;
      packet.peer = 0;
      if (const auto arena = link.arena(0); !arena.empty()) {
        std::byte* place = arena.data() + number % load.window * bytes;
        std::memcpy(place, packet.payload, bytes);
        packet.payload = place;
      }
    }
    if (count > 0) sent += link.send({packets.data(), static_cast<size_t>(count)});
    const int received = link.receive(burst);
    for (int i = 0; i < received; ++i) {
      std::memcpy(out.data() + (done + i) % 64 * bytes, burst[i].payload, burst[i].payload_bytes);
      link.release({&burst[i].buffer, 1});
    }
    done += received;
    load.answered.fetch_add(received, std::memory_order_relaxed);
    if (received > 0) {
      backoff.reset();
    } else if (backoff.idle()) {
      const auto since = Clock::now();
      waiter->wait(20 * kMs);
      backoff.reset();
      if (!load.stop && Clock::now() - since >= std::chrono::milliseconds(20)) {
        load.lost += sent - done;
        sent = done;
      }
    }
  }
}

// Answers every packet with a result of the same size, as a burst.
void serve(Transport& hub, Setup& setup, Load& load) {
  auto waiter = must(Waiter::make());
  if (!waiter->add(&hub).ok()) return;
  std::byte* results = setup.results ? setup.results->bytes().data() : setup.plain_results.data();
  RxPacket burst[kBurst];
  TxPacket answers[kBurst];
  BufferId buffers[kBurst];
  Backoff backoff;
  uint64_t number = 0;
  while (!load.stop) {
    const int count = hub.receive(burst);
    if (count == 0) {
      if (!backoff.idle()) continue;
      waiter->wait(20 * kMs);
      backoff.reset();
      continue;
    }
    backoff.reset();
    for (int i = 0; i < count; ++i) {
      std::memcpy(answers[i].head, burst[i].head, kHeaderBytes);
      answers[i].payload = results + number++ / setup.links.size() % load.window * load.payload_bytes;
      answers[i].payload_bytes = load.payload_bytes;
      answers[i].peer = burst[i].peer != kNoPeer ? burst[i].peer : hub.adopt(burst[i]);
      buffers[i] = burst[i].buffer;
    }
    hub.release({buffers, static_cast<size_t>(count)});
    hub.send({answers, static_cast<size_t>(count)});
  }
}

void measure(const std::string& kind, uint32_t payload_bytes, uint32_t window, double seconds, int links) {
  Load load{payload_bytes, window};
  Setup setup = kind == "shm" ? make_shm(links, payload_bytes, window)
                              : make_udp(links, payload_bytes, window, kind == "udp");
  std::vector<std::thread> threads;
  threads.emplace_back([&] { serve(*setup.hub, setup, load); });
  for (auto& link : setup.links) threads.emplace_back([&] { drive(*link, load); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // memory is touched for the first time
  const uint64_t before = load.answered;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const uint64_t answered = load.answered - before;
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  load.stop = true;
  for (std::thread& thread : threads) thread.join();
  const double packets = 2.0 * static_cast<double>(answered) / took;
  std::printf("%-10s %8u %8u %12.0f %10.3f %8llu\n", kind.c_str(), payload_bytes, window, packets,
              packets * payload_bytes / 1e9, static_cast<unsigned long long>(load.lost.load()));
  std::fflush(stdout);
}

}  // namespace
}  // namespace gatun

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.5;
  const uint32_t window = argc > 3 ? static_cast<uint32_t>(std::atoi(argv[3])) : 16;
  if (only == "--help" || seconds <= 0 || window == 0) {
    std::printf("usage: transport_bench [shm|udp|udp-plain] [seconds per line] [window]\n"
                "udp-plain: without GSO and GRO\n");
    return only == "--help" ? 0 : 2;
  }
  std::printf("%-10s %8s %8s %12s %10s %8s\n", "transport", "payload", "window", "packets/s", "GB/s", "lost");
  for (const char* kind : {"shm", "udp", "udp-plain"}) {
    if (!only.empty() && only != kind) continue;
    for (uint32_t payload : {1024u, 1408u, 4096u, 8896u, 16384u, 32768u, 61440u}) {
      gatun::measure(kind, payload, window, seconds, 4);
    }
  }
  return 0;
}
