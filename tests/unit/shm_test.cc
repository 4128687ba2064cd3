// What is particular to shm: who may touch what, a peer that writes anything anywhere, full rings, and handing memory over.
#include "host/transport/shm.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "host/transport/waiter.h"

namespace gatun {
namespace {

constexpr uint32_t kPayload = 1024, kWindow = 16;

struct Pair {  // one hub with one link, whose memory the test can also reach as a hostile worker would
  std::unique_ptr<ShmHub> hub;
  std::shared_ptr<ShmArena> results;
  PeerId peer = kNoPeer;
  ShmTicket ticket;
  std::span<std::byte> raw;

  Pair() {
    hub = std::move(ShmHub::make({.links_max = 4, .payload_bytes_max = kPayload, .buffers = 8}).value());
    results = ShmArena::make(shape().result_bytes).value();
    peer = add(&ticket);
    void* memory = ::mmap(nullptr, shape().region_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, ticket.region.get(), 0);
    REQUIRE(memory != MAP_FAILED);
    raw = {static_cast<std::byte*>(memory), shape().region_bytes()};
  }
  ~Pair() { ::munmap(raw.data(), raw.size()); }
  static ShmShape shape() { return ShmShape::make(1, kWindow, kPayload); }
  PeerId add(ShmTicket* out) { return hub->attach(std::move(ShmPort::make(shape(), results, out).value())); }
};

TxPacket make_packet(uint8_t number, const std::byte* payload, uint32_t payload_bytes, PeerId peer) {
  TxPacket packet;
  std::memset(packet.head, number, kHeaderBytes);
  packet.payload = payload;
  packet.payload_bytes = payload_bytes;
  packet.peer = peer;
  return packet;
}

TEST_CASE("send__arena_payloads_are_not_copied", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  std::byte* place = link->arena(0).data() + 3 * kPayload;
  const TxPacket up = make_packet(1, place, kPayload, 0);
  REQUIRE(link->send({&up, 1}) == 1);
  place[0] = std::byte{77};  // after sending
  RxPacket packet[1];
  REQUIRE(pair.hub->receive(packet) == 1);
  REQUIRE(packet[0].payload[0] == std::byte{77});
  REQUIRE(packet[0].buffer == kNoBuffer);
  REQUIRE_FALSE(packet[0].checksummed);

  std::byte* result = pair.hub->arena(pair.peer).data() + 5 * kPayload;
  const TxPacket down = make_packet(2, result, kPayload, pair.peer);
  REQUIRE(pair.hub->send({&down, 1}) == 1);
  result[9] = std::byte{88};
  REQUIRE(link->receive(packet) == 1);
  REQUIRE(packet[0].payload[9] == std::byte{88});
}

TEST_CASE("send__a_full_ring_takes_fewer_at_the_link_and_drops_at_the_hub", "[shm]") {
  Pair pair;
  const uint32_t slots = Pair::shape().slots;
  ShmTicket other_ticket;
  const PeerId other = pair.add(&other_ticket);
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  auto other_link = std::move(ShmLink::make(std::move(other_ticket)).value());
  std::vector<TxPacket> up(slots + 10, make_packet(1, nullptr, 0, 0));
  REQUIRE(link->send(up) == static_cast<int>(slots));
  REQUIRE(link->send(up) == 0);
  RxPacket burst[kBurst];
  const int share = pair.hub->receive(burst);  // of two links, so not the whole burst
  REQUIRE(share == kBurst / 2);
  REQUIRE(link->send(up) == share);

  // The hub's packets to a link that does not read are lost; those to another arrive.
  for (uint32_t i = 0; i < slots + 10; ++i) {
    const TxPacket down[2] = {make_packet(1, nullptr, 0, pair.peer), make_packet(2, nullptr, 0, other)};
    REQUIRE(pair.hub->send(down) == 2);
    REQUIRE(other_link->receive(burst) == 1);
  }
  REQUIRE(pair.hub->stats().dropped_send == 10);
}

TEST_CASE("send__copied_payloads_wait_for_cells_and_buffers", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  std::vector<std::byte> probe(kPayload);
  std::vector<TxPacket> up(2 * kShmCells, make_packet(1, probe.data(), kPayload, 0));
  REQUIRE(link->send(up) == static_cast<int>(kShmCells));
  RxPacket burst[kBurst];
  std::vector<BufferId> held;
  REQUIRE(pair.hub->receive(burst) == static_cast<int>(kShmCells));
  for (uint32_t i = 0; i < kShmCells; ++i) held.push_back(burst[i].buffer);
  REQUIRE(link->send(up) == static_cast<int>(kShmCells));
  REQUIRE(pair.hub->receive(burst) == 0);  // all eight buffers are held
  REQUIRE(pair.hub->stats().dropped_no_buffer == kShmCells);
  pair.hub->release(held);
  REQUIRE(link->send({up.data(), 1}) == 1);
  REQUIRE(pair.hub->receive(burst) == 1);
}

TEST_CASE("receive__ring_positions_wrap", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  RxPacket burst[kBurst];
  uint64_t sent = 0, seen = 0;
  std::mt19937 random(5);
  while (seen < 20 * Pair::shape().slots) {
    std::vector<TxPacket> up;
    for (uint32_t i = 0; i < 1 + random() % kBurst; ++i) {
      up.push_back(make_packet(static_cast<uint8_t>(sent + i), nullptr, 0, 0));
    }
    sent += link->send(up);
    const int count = pair.hub->receive({burst, 1 + random() % kBurst});
    for (int i = 0; i < count; ++i) REQUIRE(burst[i].head[0] == std::byte(seen++ & 0xff));
  }
}

TEST_CASE("prepare_wait__false_when_packets_are_there", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  REQUIRE(pair.hub->prepare_wait());
  REQUIRE(link->prepare_wait());
  pair.hub->finish_wait();
  link->finish_wait();
  const TxPacket up = make_packet(1, nullptr, 0, 0), down = make_packet(1, nullptr, 0, pair.peer);
  REQUIRE(link->send({&up, 1}) == 1);
  REQUIRE(pair.hub->send({&down, 1}) == 1);
  REQUIRE_FALSE(pair.hub->prepare_wait());
  REQUIRE_FALSE(link->prepare_wait());
}

// The moment that decides: one side sends while the other falls asleep. Either the sleeper sees the packet in its last look,
// or the sender sees the sleeper and rings. Many tries, both at once, with nothing else between them.
void race_sleep_against_send(Transport& sender, const TxPacket& packet, Transport& sleeper) {
  constexpr int kRounds = 20000;
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  REQUIRE(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, sleeper.wait_fd(), &event) == 0);
  std::atomic<int> go{0}, sent{0};
  std::atomic<bool> failed{false};
  const auto await = [&](const std::atomic<int>& counter, int value) {
    for (int spins = 0; counter.load(std::memory_order_acquire) < value && !failed; ++spins) {
      if (spins % 256 == 255) std::this_thread::yield();
    }
  };
  std::thread other([&] {
    for (int round = 1; round <= kRounds && !failed; ++round) {
      await(go, round);
      if (sender.send({&packet, 1}) != 1) failed = true;
      sent.store(round, std::memory_order_release);
    }
  });
  int missed = 0;
  RxPacket burst[kBurst];
  for (int round = 1; round <= kRounds && !failed; ++round) {
    while (::epoll_wait(epoll.get(), &event, 1, 0) > 0) {
    }
    go.store(round, std::memory_order_release);
    // The news of it travels for some hundred cycles, or more; every delay is tried, fine and coarse.
    for (int delay = round % 1024; delay > 0; --delay) std::atomic_signal_fence(std::memory_order_seq_cst);
    for (int delay = round % 2 * (round % 63); delay > 0; --delay) Backoff::pause();
    const bool saw_nothing = sleeper.prepare_wait();
    await(sent, round);
    if (saw_nothing && ::epoll_wait(epoll.get(), &event, 1, 0) == 0) ++missed;
    sleeper.finish_wait();
    if (sleeper.receive(burst) != 1) failed = true;
  }
  other.join();
  REQUIRE_FALSE(failed);
  REQUIRE(missed == 0);
}

TEST_CASE("prepare_wait__never_misses_a_packet_of_that_moment", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  const TxPacket up = make_packet(1, nullptr, 0, 0), down = make_packet(1, nullptr, 0, pair.peer);
  race_sleep_against_send(*link, up, *pair.hub);
  race_sleep_against_send(*pair.hub, down, *link);
}

TEST_CASE("detach__gives_the_port_back_and_stops_traffic", "[shm]") {
  Pair pair;
  auto link = std::move(ShmLink::make(std::move(pair.ticket)).value());
  const TxPacket up = make_packet(1, nullptr, 0, 0);
  REQUIRE(link->send({&up, 1}) == 1);
  REQUIRE(pair.hub->detach(pair.peer) != nullptr);
  REQUIRE(pair.hub->detach(pair.peer) == nullptr);
  RxPacket burst[kBurst];
  REQUIRE(pair.hub->receive(burst) == 0);
  const TxPacket down = make_packet(1, nullptr, 0, pair.peer);
  REQUIRE(pair.hub->send({&down, 1}) == 1);
  REQUIRE(pair.hub->stats().dropped_send == 1);
  REQUIRE(pair.hub->arena(pair.peer).empty());
  for (int i = 0; i < 1000; ++i) link->send({&up, 1});  // the worker notices nothing, and does not crash
  ShmTicket again;
  REQUIRE(pair.add(&again) == pair.peer);
}

TEST_CASE("attach__refuses_when_full", "[shm]") {
  Pair pair;
  ShmTicket tickets[4];
  for (int i = 0; i < 3; ++i) REQUIRE(pair.add(&tickets[i]) != kNoPeer);
  REQUIRE(pair.add(&tickets[3]) == kNoPeer);
}

TEST_CASE("open__results_cannot_be_written_and_nothing_can_be_resized", "[shm]") {
  Pair pair;
  const int results = pair.ticket.results.get(), region = pair.ticket.region.get();
  REQUIRE(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, results, 0) == MAP_FAILED);
  void* readable = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, results, 0);
  REQUIRE(readable != MAP_FAILED);
  REQUIRE(::mprotect(readable, 4096, PROT_READ | PROT_WRITE) != 0);
  ::munmap(readable, 4096);
  REQUIRE(::write(results, "x", 1) < 0);
  Fd reopened(::open(("/proc/self/fd/" + std::to_string(results)).c_str(), O_RDWR | O_CLOEXEC));
  if (reopened.valid()) REQUIRE(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, reopened.get(), 0) == MAP_FAILED);
  REQUIRE(::fallocate(results, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  for (int fd : {results, region}) {
    REQUIRE(::ftruncate(fd, 0) != 0);
    REQUIRE(::ftruncate(fd, 1 << 30) != 0);
  }
}

TEST_CASE("open__refuses_memory_that_is_not_as_announced", "[shm]") {
  Pair pair;
  const auto copy = [&](int fd) { return Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  const auto ticket = [&] {
    return ShmTicket{Pair::shape(), copy(pair.ticket.region.get()), copy(pair.ticket.results.get()),
                     copy(pair.ticket.up_bell.get()), copy(pair.ticket.down_bell.get())};
  };
  ShmTicket bad = ticket();
  bad.shape.slots *= 2;
  REQUIRE_FALSE(ShmPort::open(std::move(bad)).ok());
  bad = ticket();
  bad.shape.slots = 100;
  REQUIRE_FALSE(ShmPort::open(std::move(bad)).ok());
  bad = ticket();
  bad.shape.tx_bytes = ~uint64_t{0};
  REQUIRE_FALSE(ShmPort::open(std::move(bad)).ok());
  bad = ticket();
  bad.region = Fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));  // right size, not sealed
  REQUIRE(::ftruncate(bad.region.get(), static_cast<off_t>(Pair::shape().region_bytes())) == 0);
  const auto refused = ShmPort::open(std::move(bad));
  REQUIRE_FALSE(refused.ok());
  REQUIRE(refused.status().code() == Code::kRefused);
  REQUIRE(ShmPort::open(ticket()).ok());
}

// Reads all that a packet refers to, which faults (or trips a sanitizer) if it lies outside.
uint64_t touch(const RxPacket& packet) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) sum += std::to_integer<uint64_t>(packet.head[i]);
  for (uint32_t i = 0; i < packet.payload_bytes; ++i) sum += std::to_integer<uint64_t>(packet.payload[i]);
  return sum;
}

// The hub serves a good link beside the one whose memory is attacked, and both directions are used.
struct Siege {
  Pair pair;
  PeerId good_peer;
  std::unique_ptr<ShmLink> good;
  std::vector<std::byte> status = std::vector<std::byte>(100);
  uint64_t sum = 0;
  int rounds = 0;

  Siege() {
    ShmTicket ticket;
    good_peer = pair.add(&ticket);
    good = std::move(ShmLink::make(std::move(ticket)).value());
  }

  void round() {
    ++rounds;
    const uint8_t number = static_cast<uint8_t>(rounds);
    const TxPacket up = make_packet(number, good->arena(0).data(), 64, 0);
    REQUIRE(good->send({&up, 1}) == 1);
    RxPacket burst[kBurst];
    bool heard = false;
    for (int tries = 0; tries < 3 && !heard; ++tries) {
      const int count = pair.hub->receive(burst);
      REQUIRE(count <= kBurst);
      for (int i = 0; i < count; ++i) {
        sum += touch(burst[i]);
        REQUIRE((burst[i].peer == pair.peer || burst[i].peer == good_peer));
        REQUIRE(burst[i].payload_bytes <= kPayload);
        if (burst[i].peer == good_peer) heard = burst[i].head[0] == std::byte{number};
        pair.hub->release({&burst[i].buffer, 1});
      }
    }
    REQUIRE(heard);
    const std::byte* result = pair.hub->arena(good_peer).data();
    const TxPacket down[4] = {make_packet(1, result, 64, pair.peer), make_packet(1, status.data(), 100, pair.peer),
                              make_packet(number, result, 64, good_peer),
                              make_packet(number, status.data(), 100, good_peer)};
    REQUIRE(pair.hub->send(down) == 4);
    REQUIRE(good->receive(burst) == 2);
    for (int i = 0; i < 2; ++i) {
      REQUIRE(burst[i].head[31] == std::byte{number});
      good->release({&burst[i].buffer, 1});
    }
    if (rounds % 16 == 0) {
      pair.hub->prepare_wait();
      pair.hub->finish_wait();
    }
  }
};

TEST_CASE("receive__survives_random_bytes_over_the_whole_region", "[shm]") {
  Siege siege;
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    for (size_t at = 0; at + 8 <= siege.pair.raw.size(); at += 8) {
      const uint64_t word = random();
      std::memcpy(siege.pair.raw.data() + at, &word, 8);
    }
    siege.round();
  }
}

// Descriptors that are due by their turn and whose fields are near every limit.
TEST_CASE("receive__survives_plausible_but_false_descriptors", "[shm]") {
  Siege siege;
  std::mt19937_64 random(12);
  auto* slots = reinterpret_cast<ShmSlot*>(siege.pair.raw.data() + 4096);  // the worker's ring comes after the first page
  const uint32_t mask = Pair::shape().slots - 1;
  const uint64_t offsets[] = {0, 1, kShmCells - 1, kShmCells, kPayload * kWindow - 64, kPayload * kWindow, 1ull << 31,
                              1ull << 32, (1ull << 63) - 32, ~0ull - 1023, ~0ull};
  const uint32_t sizes[] = {0, 1, 64, kPayload - 1, kPayload, kPayload + 1, 65536, 1u << 31, ~0u};
  uint32_t position = 0;
  for (int round = 0; round < 3000; ++round) {
    for (uint32_t i = 0; i < 8; ++i, ++position) {
      ShmSlot& slot = slots[position & mask];
      slot.descriptor.offset = offsets[random() % std::size(offsets)];
      slot.descriptor.payload_bytes = sizes[random() % std::size(sizes)];
      slot.descriptor.kind = static_cast<uint32_t>(random() % 6);
      slot.turn.store(position + 1, std::memory_order_release);
    }
    siege.round();
  }
  REQUIRE(siege.pair.hub->stats().dropped_invalid > 1000);
  REQUIRE(siege.pair.hub->stats().packets_received > 3000);
}

TEST_CASE("receive__survives_a_peer_that_writes_while_we_read", "[shm]") {
  Siege siege;
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    std::mt19937_64 random(13);
    auto* words = reinterpret_cast<uint64_t*>(siege.pair.raw.data());
    const size_t count = siege.pair.raw.size() / 8;
    while (!stop) {
      for (int i = 0; i < 1000; ++i) {
        const size_t at = random() % 4 == 0 ? random() % count : random() % (4096 * 4 / 8);
        std::atomic_ref<uint64_t>(words[at]).store(random() % 8 == 0 ? random() : random() % 200, std::memory_order_relaxed);
      }
    }
  });
  for (int round = 0; round < 20000; ++round) siege.round();
  stop = true;
  attacker.join();
}

TEST_CASE("ring_if_asleep__a_worker_that_fills_its_bell_does_not_block_the_hub", "[shm]") {
  Pair pair;
  // Every send finds the worker asleep and rings a bell that nobody drains.
  auto* control = reinterpret_cast<ShmRingControl*>(pair.raw.data()) + 1;
  const TxPacket down = make_packet(1, nullptr, 0, pair.peer);
  ::fcntl(pair.ticket.down_bell.get(), F_SETFL, 0);
  for (int i = 0; i < 200000; ++i) {
    control->sleeping.store(1);
    control->consumed.store(static_cast<uint32_t>(i));
    REQUIRE(pair.hub->send({&down, 1}) == 1);
  }
  pair.ticket = {};  // and now nobody has the reading end
  control->sleeping.store(1);
  REQUIRE(pair.hub->send({&down, 1}) == 1);
}

// ---- ShmDoor

constexpr ShmKey kKey{.token = 0x1234567890abcdefu, .rank = 3, .lane = 1};

// Serves the door in a thread while the caller connects.
Result<ShmTicket> connect_served(ShmDoor& door, const ShmKey& key, const std::string& name) {
  std::atomic<bool> stop{false};
  std::thread server([&] {
    while (!stop) {
      door.serve(0);
      std::this_thread::yield();
    }
  });
  auto ticket = shm_connect(name, key, 10 * kSecond);
  stop = true;
  server.join();
  return ticket;
}

TEST_CASE("serve__hands_a_working_link_over_once", "[shm_door]") {
  Pair pair;
  auto door = std::move(ShmDoor::make("").value());
  REQUIRE_FALSE(door->name().empty());
  door->offer(kKey, std::move(pair.ticket));
  auto ticket = connect_served(*door, kKey, door->name());
  REQUIRE(ticket.ok());
  REQUIRE(door->offers() == 0);
  auto link = ShmLink::make(std::move(ticket.value()));
  REQUIRE(link.ok());
  REQUIRE(link.value()->caps().payload_bytes_max == kPayload);
  const TxPacket up = make_packet(9, link.value()->arena(0).data(), kPayload, 0);
  REQUIRE(link.value()->send({&up, 1}) == 1);
  RxPacket burst[kBurst];
  REQUIRE(pair.hub->receive(burst) == 1);

  auto second = connect_served(*door, kKey, door->name());
  REQUIRE_FALSE(second.ok());
  REQUIRE(second.status().code() == Code::kRefused);
  REQUIRE(std::string(second.status().message()).find("rank 3") != std::string::npos);
}

TEST_CASE("serve__refuses_a_wrong_key", "[shm_door]") {
  Pair pair;
  auto door = std::move(ShmDoor::make("").value());
  door->offer(kKey, std::move(pair.ticket));
  for (ShmKey wrong : {ShmKey{kKey.token + 1, 3, 1}, ShmKey{kKey.token, 2, 1}, ShmKey{kKey.token, 3, 0}}) {
    REQUIRE(connect_served(*door, wrong, door->name()).status().code() == Code::kRefused);
  }
  REQUIRE(door->offers() == 1);
  door->withdraw_all(kKey.token);
  REQUIRE(connect_served(*door, kKey, door->name()).status().code() == Code::kRefused);
}

TEST_CASE("serve__strangers_cost_a_bounded_number_of_descriptors", "[shm_door]") {
  Pair pair;
  auto door = std::move(ShmDoor::make("").value());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, door->name().data(), door->name().size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + door->name().size());
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    if (i % 3 == 0) REQUIRE(::send(fd.get(), "rubbish that is no request", 20, 0) == 20);
    strangers.push_back(std::move(fd));
    door->serve(0);
  }
  door->offer(kKey, std::move(pair.ticket));
  REQUIRE(connect_served(*door, kKey, door->name()).ok());
  door->serve(100 * kSecond);  // the silent ones have had their time
  char byte;
  for (Fd& fd : strangers) REQUIRE(::recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0);
}

TEST_CASE("connect__says_when_nobody_is_there_or_answers", "[shm_door]") {
  const auto absent = shm_connect("gatun-no-such-door", kKey, kSecond);
  REQUIRE_FALSE(absent.ok());
  REQUIRE(std::string(absent.status().message()).find("udp") != std::string::npos);
  auto door = std::move(ShmDoor::make("").value());
  const auto silent = shm_connect(door->name(), kKey, 20 * kMs);
  REQUIRE(silent.status().code() == Code::kTimeout);
}

TEST_CASE("make__a_taken_name_is_refused", "[shm_door]") {
  auto door = std::move(ShmDoor::make("").value());
  const auto second = ShmDoor::make(door->name());
  REQUIRE_FALSE(second.ok());
  REQUIRE(std::string(second.status().message()).find(door->name()) != std::string::npos);
  REQUIRE_FALSE(ShmDoor::make(std::string(200, 'x')).ok());
}

}  // namespace
}  // namespace gatun
