#include "switch_model/node.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

using namespace gatun;

namespace {

constexpr uint32_t kJob = 0xabcdef01;
constexpr uint64_t kToken = 0x1122334455667788;

// A packet as a transport would deliver it.
struct Packet {
  std::byte head[kHeaderBytes];
  std::vector<std::byte> payload;
  RxPacket view(PeerId peer, BufferId buffer) const {
    return {.head = head,
            .payload = payload.data(),
            .payload_bytes = static_cast<uint32_t>(payload.size()),
            .peer = peer,
            .buffer = buffer};
  }
};

Packet data(uint32_t seq, uint8_t child, std::vector<float> values, uint8_t flags = 0, uint32_t contract = 5) {
  Packet p;
  p.payload.resize(values.size() * 4);
  if (!values.empty()) std::memcpy(p.payload.data(), values.data(), p.payload.size());
  Header h{.type = PacketType::kData, .flags = flags, .child = child, .job = kJob, .seq = seq, .contract = contract, .op = 1,
           .contributors = 1, .elems = values.empty() ? 2u : static_cast<uint32_t>(values.size()), .elem_type = Type::kF32};
  encode(h, p.payload.data(), static_cast<uint32_t>(p.payload.size()), true, p.head);
  return p;
}

Packet probe(uint8_t child, uint64_t token = kToken) {
  Packet p;
  p.payload.resize(64);
  for (int i = 0; i < 8; ++i) p.payload[static_cast<size_t>(i)] = std::byte(token >> (56 - 8 * i));
  Header h{.type = PacketType::kProbe, .child = child, .job = kJob};
  encode(h, p.payload.data(), 64, true, p.head);
  return p;
}

struct Switch {
  explicit Switch(uint32_t children, bool root = true, PeerId parent = kNoPeer) {
    TreeSpec spec{.job = kJob,
                  .token = kToken,
                  .window = 2,
                  .payload_bytes = 64,
                  .root = root,
                  .parent = parent,
                  .child_at_parent = 3};
    for (uint32_t i = 0; i < children; ++i)
      spec.child_ranks.push_back({static_cast<uint16_t>(10 * i), static_cast<uint16_t>(10 * i + 1)});
    arena.resize(spec.arena_bytes());
    REQUIRE(node.admit(spec, arena).ok());
    for (uint32_t i = 0; i < children; ++i) {
      const Packet p = probe(static_cast<uint8_t>(i));
      REQUIRE(node.accepts_probe(p.view(kNoPeer, 0)));
      feed(p, 100 + i);
      REQUIRE(out.sends().size() == 1);
    }
  }
  void feed(const Packet& p, PeerId peer, BufferId buffer = 0) {
    out.clear();
    received.push_back(p);  // as in a transport, the bytes stay while the node may hold them
    node.on_packet(received.back().view(peer, buffer), 5 * kMs, &out);
  }
  Header sent(size_t i) const {
    Header h;
    const TxPacket& p = out.sends()[i];
    REQUIRE(decode(p.head, p.payload, p.payload_bytes, true, &h) == Decode::kOk);
    return h;
  }
  float value(size_t packet, size_t i) const {
    float v;
    std::memcpy(&v, out.sends()[packet].payload + 4 * i, 4);
    return v;
  }
  Node node{4};
  std::vector<std::byte> arena;
  std::deque<Packet> received;
  Outbox out;
};

}  // namespace

TEST_CASE("on_packet__sums_when_all_are_here", "[node]") {
  Switch s(3);
  const Packet a = data(0, 2, {1, 2}), b = data(0, 0, {10, 20}), c = data(0, 1, {100, 200});
  s.feed(a, 102, 1);
  CHECK(s.out.sends().empty());
  CHECK(s.out.releases().empty());
  s.feed(b, 100, 2);
  s.feed(c, 101, 3);
  REQUIRE(s.out.sends().size() == 3);
  CHECK(s.out.releases().size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(s.out.sends()[i].peer == 100 + i);
    CHECK(s.sent(i).type == PacketType::kResult);
    CHECK(s.sent(i).contributors == 3);
    CHECK(s.sent(i).root_us == 5000);
    CHECK(s.value(i, 0) == 111);
    CHECK(s.value(i, 1) == 222);
  }
  CHECK(s.node.open_banks(kJob, 0) == 0);
}

TEST_CASE("on_packet__order_of_children_not_of_arrival", "[node]") {
  // 1e8 + 1 - 1e8 is 0 or 1 in f32, depending on the order.
  for (int order = 0; order < 6; ++order) {
    Switch s(3);
    const Packet p[3] = {data(0, 0, {1e8f}), data(0, 1, {-1e8f}), data(0, 2, {1})};
    const int perm[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (const int i : perm[order]) s.feed(p[i], 100 + static_cast<PeerId>(i));
    CHECK(s.value(0, 0) == 1);
  }
}

TEST_CASE("on_packet__repeat_gets_the_stored_answer", "[node]") {
  Switch s(2);
  const Packet a = data(0, 0, {1}), b = data(0, 1, {2});
  s.feed(a, 100);
  s.feed(b, 101);
  s.feed(a, 100, 9);
  REQUIRE(s.out.sends().size() == 1);
  CHECK(s.out.sends()[0].peer == 100);
  CHECK(s.value(0, 0) == 3);
  REQUIRE(s.out.releases().size() == 1);
  CHECK(s.out.releases()[0] == 9);
  CHECK(s.node.stats().repeats == 1);
}

TEST_CASE("on_packet__status_names_the_missing_ranks", "[node]") {
  Switch s(3);
  const Packet a = data(0, 0, {1});
  s.feed(a, 100, 1);
  s.feed(a, 100, 2);
  REQUIRE(s.out.sends().size() == 1);
  CHECK(s.sent(0).type == PacketType::kStatus);
  const TxPacket& p = s.out.sends()[0];
  REQUIRE(p.payload_bytes == 10);
  const unsigned char expected[10] = {0, 4, 0, 10, 0, 11, 0, 20, 0, 21};
  CHECK(std::memcmp(p.payload, expected, 10) == 0);
  REQUIRE(s.out.releases().size() == 1);
  CHECK(s.out.releases()[0] == 2);
}

TEST_CASE("on_packet__foreign_stale_and_damaged_are_dropped", "[node]") {
  Switch s(2);
  s.feed(data(0, 0, {1}), 101, 1);  // another child's peer
  CHECK(s.node.stats().dropped_foreign == 1);
  s.feed(data(0, 0, {1}), kNoPeer, 1);
  CHECK(s.node.stats().dropped_foreign == 2);
  Packet other = data(0, 0, {1});
  other.payload[0] ^= std::byte{1};
  s.feed(other, 100, 1);
  CHECK(s.node.stats().dropped_checksum == 1);
  other.head[0] = std::byte{0x71};
  s.feed(other, 100, 1);
  CHECK(s.node.stats().dropped_malformed == 1);
  s.feed(data(0, 0, std::vector<float>(17, 1.f)), 100, 1);  // more than the job's payload
  CHECK(s.node.stats().dropped_malformed == 2);
  s.feed(probe(0, kToken + 1), 100, 1);
  CHECK(s.node.stats().probes == 2);
  CHECK(s.out.sends().empty());
  CHECK(s.out.releases().size() == 1);
  CHECK_FALSE(s.node.accepts_probe(probe(0, kToken + 1).view(kNoPeer, 0)));
  CHECK_FALSE(s.node.accepts_probe(probe(2).view(kNoPeer, 0)));
  CHECK(s.node.open_banks(kJob, 0) == 0);
}

TEST_CASE("on_packet__refusal_releases_and_tells_all", "[node]") {
  Switch s(2);
  const Packet ahead = data(1, 0, {4}), a = data(0, 0, {1}), b = data(0, 1, {2}, 0, 6);
  s.feed(ahead, 100, 7);
  s.feed(a, 100, 8);
  s.feed(b, 101, 9);
  REQUIRE(s.out.sends().size() == 2);
  CHECK((s.sent(0).flags & kFlagRefused) != 0);
  CHECK(s.out.sends()[1].payload_bytes == 0);
  CHECK(s.out.releases().size() == 3);  // both contributions and the void chunk behind them
  CHECK(s.node.open_banks(kJob, 0) == 0);
}

TEST_CASE("on_packet__empty_contributions_carry_one_payload_through", "[node]") {
  Switch s(3);
  s.feed(data(0, 0, {}, kFlagEmpty), 100);
  s.feed(data(0, 2, {}, kFlagEmpty), 102);
  s.feed(data(0, 1, {-0.0f, 7}), 101);
  REQUIRE(s.out.sends().size() == 3);
  CHECK(std::signbit(s.value(0, 0)));
  CHECK(s.value(2, 1) == 7);
}

TEST_CASE("inner__partial_up_answer_down", "[node]") {
  Switch s(2, false, 77);
  s.feed(data(0, 0, {1}), 100);
  const Packet b = data(0, 1, {2});
  s.feed(b, 101);
  REQUIRE(s.out.sends().size() == 1);
  CHECK(s.out.sends()[0].peer == 77);
  CHECK(s.sent(0).type == PacketType::kData);
  CHECK(s.sent(0).child == 3);
  CHECK(s.sent(0).contributors == 2);
  CHECK((s.sent(0).flags & kFlagPartial) != 0);
  CHECK(s.value(0, 0) == 3);
  s.feed(b, 101);
  REQUIRE(s.out.sends().size() == 1);  // a child repeats itself: so does this switch
  CHECK(s.out.sends()[0].peer == 77);

  Packet answer = data(0, 0, {30});
  Header h;
  REQUIRE(decode(answer.head, answer.payload.data(), 4, true, &h) == Decode::kOk);
  h.type = PacketType::kResult;
  encode(h, answer.payload.data(), 4, true, answer.head);
  s.feed(answer, 100);  // not from the parent
  CHECK(s.out.sends().empty());
  s.feed(answer, 77);
  REQUIRE(s.out.sends().size() == 2);
  CHECK(s.value(1, 0) == 30);
}

TEST_CASE("admit__limits_and_remove__gives_everything_back", "[node]") {
  Switch s(2);
  std::vector<std::byte> arena(4096);
  TreeSpec spec{.job = 9, .window = 2, .payload_bytes = 64, .child_ranks = {{0}}};
  for (uint32_t job = 1; job <= 3; ++job) {
    spec.job = job;
    CHECK(s.node.admit(spec, arena).ok());
  }
  spec.job = 4;
  CHECK(s.node.admit(spec, arena).code() == Code::kRefused);
  const Packet a = data(0, 0, {1}), b = data(1, 0, {1});
  s.feed(a, 100, 41);
  s.feed(b, 100, 42);
  s.out.clear();
  CHECK_FALSE(s.node.remove(kJob, 0, &s.out));
  CHECK(s.out.releases().size() == 2);
  CHECK(s.node.trees() == 3);
  for (uint32_t job = 1; job <= 3; ++job) CHECK(s.node.child_peer(job, 0, 0) == kNoPeer);
  CHECK(s.node.admit(spec, arena).ok());
  CHECK(s.node.admit(spec, arena).code() != Code::kOk);
  spec.job = 5;
  spec.window = 3;
  CHECK(s.node.remove(4, 0, &s.out) == false);
  CHECK(s.node.admit(spec, arena).code() == Code::kInvalidArgument);
  spec.window = 1024;
  CHECK(s.node.admit(spec, arena).code() == Code::kInvalidArgument);
  spec.child_ranks.resize(65);
  CHECK(s.node.admit(spec, arena).code() == Code::kRefused);
}

TEST_CASE("view__counts_and_names_who_is_missing_longest", "[node]") {
  Switch s(3);
  const auto look = [&] {
    TreeView view;
    int found = 0;
    for (size_t place = 0; place < s.node.places(); ++place) found += s.node.view(place, &view) > 0;
    REQUIRE(found == 1);
    return view;
  };
  CHECK(look().job == kJob);
  CHECK(look().banks == 4);
  CHECK(look().open == 0);
  CHECK(look().waiting_since == kNever);
  const Packet newer = data(1, 0, {1}), older = data(0, 0, {1});
  s.feed(newer, 100);
  CHECK(look().missing == 0b110);
  s.feed(older, 100);
  s.feed(data(0, 1, {2}), 101);
  TreeView view = look();
  CHECK(view.open == 2);
  CHECK(view.missing == 0b100);  // of chunk 0, the older one
  CHECK(view.waiting_since == 5 * kMs);
  CHECK(view.operation == 1);
  CHECK(view.stats.operations == 2);  // number 1 was begun, so was number 0
  s.feed(older, 100);
  CHECK(look().stats.statuses == 1);
  s.feed(data(0, 2, {4}), 102);
  view = look();
  CHECK(view.missing == 0b110);  // of chunk 1 now
  CHECK(view.stats.contributions == 5);
  CHECK(view.stats.chunks == 1);
  CHECK(view.stats.reduced_bytes == 4);
  CHECK(view.stats.reduce_ns == 0);
  CHECK(s.node.stats().sent_results == 3);
  s.feed(older, 100);
  CHECK(look().stats.repeats == 1);
}

TEST_CASE("view__reduce_time_by_the_clock", "[node]") {
  static TimeNs ticks = 0;
  Node node(1, [] { return ticks += 7; });
  TreeSpec spec{.job = kJob, .token = kToken, .window = 2, .payload_bytes = 64, .child_ranks = {{0}}};
  std::vector<std::byte> arena(spec.arena_bytes());
  REQUIRE(node.admit(spec, arena).ok());
  Outbox out;
  const Packet opened = probe(0), a = data(0, 0, {1});
  node.on_packet(opened.view(100, 0), 0, &out);
  node.on_packet(a.view(100, 0), 0, &out);
  TreeView view;
  for (size_t place = 0; place < node.places() && node.view(place, &view) == 0; ++place) {
  }
  CHECK(view.stats.reduced_chunks == 1);
  CHECK(view.stats.reduce_ns == 7);
}
