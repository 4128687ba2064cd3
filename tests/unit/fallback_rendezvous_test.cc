#include "fallback_ranks.h"
#include "host/fallback/rendezvous_wire.h"
#include "host/fallback/store.h"

using namespace gatun;

namespace {

uint16_t free_port() {
  auto listener = MeshListener::open("127.0.0.1");
  return listener.value()->card().endpoint.port();
}

std::string free_address() {
  return "127.0.0.1:" + std::to_string(free_port());
}

Fd call(const std::string& address) {
  const Endpoint endpoint = resolve(address, 1).value()[0];
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  for (int i = 0; i < 200 && ::connect(*fd, endpoint.address(), endpoint.size) != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fd;
}

Status meet(const std::string& address, const std::string& job, uint32_t rank, uint32_t ranks, TimeNs deadline) {
  auto store = open_rendezvous(address, job, rank, ranks, deadline);
  if (!store.ok()) return store.status();
  auto texts = exchange(*store.value(), "card", rank, ranks, "text of " + std::to_string(rank), deadline);
  if (!texts.ok()) return texts.status();
  for (uint32_t r = 0; r < ranks; ++r) {
    if (texts.value()[r] != "text of " + std::to_string(r)) return {Code::kInternal, "wrong text: " + texts.value()[r]};
  }
  return {};
}

}  // namespace

TEST_CASE("rendezvous__gives_every_rank_the_texts_of_all", "[rendezvous]") {
  const std::string address = free_address();
  const size_t fds = descriptors(), tasks = threads();
  for (int i = 0; i < 10; ++i) {  // one after the other at the same address, under one name
    require_ok(on_ranks(5, [&](uint32_t r) { return meet(address, "job", r, 5, soon()); }));
  }
  CHECK(descriptors() == fds);
  CHECK(threads() == tasks);
}

TEST_CASE("rendezvous__of_one_rank_waits_for_nobody", "[rendezvous]") {
  CHECK(meet(free_address(), "job", 0, 1, soon()).ok());
}

TEST_CASE("get__waits_for_the_value_and_names_the_key", "[rendezvous]") {
  const std::string address = free_address();
  auto rank0 = open_rendezvous(address, "job", 0, 2, now_ns() + 2 * kSecond);
  auto rank1 = open_rendezvous(address, "job", 1, 2, soon());
  REQUIRE(rank0.ok());
  REQUIRE(rank1.ok());
  for (Store* store : {rank0.value().get(), rank1.value().get()}) {
    const auto missing = store->get("no/such", now_ns() + 20 * kMs);
    CHECK(missing.status().code() == Code::kTimeout);
    CHECK(std::string(missing.status().message()).find("no/such") != std::string::npos);
  }
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    (void)rank0.value()->set("late", std::string(60'000, 'z'));
  });
  CHECK(rank1.value()->get("late", soon()).value() == std::string(60'000, 'z'));
  late.join();
  CHECK(rank1.value()->set("back", "").ok());
  CHECK(rank0.value()->get("back", soon()).value().empty());
  CHECK(rank1.value()->get("late", 0).ok());  // what is there is there, whatever the deadline
  rank1.value().reset();
}

TEST_CASE("rendezvous__is_not_disturbed_by_strangers", "[rendezvous]") {
  const std::string address = free_address();
  std::vector<Fd> strangers;
  std::vector<Status> statuses;
  std::thread ranks([&] {
    statuses = on_ranks(3, [&](uint32_t r) {
      if (r > 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return meet(address, "job", r, 3, soon());
    });
  });
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(call(address));
    std::string text = i % 4 == 0   ? std::string("\0\0", 2)                   // half of a length
                       : i % 4 == 1 ? std::string("\xff\xff\xff\xff garbage")  // too long
                       : i % 4 == 2 ? std::string(
                                          "\0\0\0\x03\x01"
                                          "ga",
                                          7)          // a HELLO cut short
                                    : std::string();  // silent
    if (!text.empty()) (void)::send(*strangers.back(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  ranks.join();
  require_ok(statuses);
}

TEST_CASE("rendezvous__keeps_other_jobs_out", "[rendezvous]") {
  const std::string address = free_address();
  auto rank0 = open_rendezvous(address, "mine", 0, 2, now_ns() + 3 * kSecond);
  REQUIRE(rank0.ok());
  const Status other = meet(address, "other", 1, 2, now_ns() + 200 * kMs);
  INFO(other.message());
  CHECK(other.code() == Code::kRefused);
  CHECK(std::string(other.message()).find("it serves job 'mine'") != std::string::npos);
  CHECK(meet(address, "mine", 1, 3, now_ns() + 100 * kMs).code() == Code::kRefused);  // another size
  std::thread rank1([&] { (void)meet(address, "mine", 1, 2, soon()); });
  CHECK(exchange(*rank0.value(), "card", 0, 2, "text of 0", soon()).ok());
  rank0.value().reset();
  rank1.join();
}

TEST_CASE("rendezvous__waits_for_a_busy_address", "[rendezvous]") {
  const std::string address = free_address();
  auto first = open_rendezvous(address, "first", 0, 2, now_ns() + 3 * kSecond);
  REQUIRE(first.ok());
  CHECK(open_rendezvous(address, "second", 0, 2, now_ns() + 100 * kMs).status().code() == Code::kTimeout);
  std::vector<Status> statuses;
  std::thread second([&] { statuses = on_ranks(2, [&](uint32_t r) { return meet(address, "second", r, 2, soon()); }); });
  std::thread rank1([&] { (void)meet(address, "first", 1, 2, soon()); });
  CHECK(exchange(*first.value(), "card", 0, 2, "text of 0", soon()).ok());
  first.value().reset();
  rank1.join();
  second.join();
  require_ok(statuses);
}

TEST_CASE("exchange__names_the_ranks_that_did_not_come", "[rendezvous]") {
  const std::string address = free_address();
  const TimeNs deadline = now_ns() + 400 * kMs;
  const auto statuses = on_ranks(2, [&](uint32_t r) { return meet(address, "job", r == 0 ? 0 : 2, 4, deadline); });
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.code() == Code::kTimeout);
    CHECK(std::string(status.message()).find("ranks 1, 3 of 4") != std::string::npos);
  }
}

// Another may take its place, and nobody keeps what it had said.
TEST_CASE("rendezvous__forgets_a_rank_that_dies_before_all_have_come", "[rendezvous]") {
  namespace wire = rendezvous_wire;
  const std::string address = free_address();
  std::vector<Status> statuses(3);
  {
    std::jthread rank0([&] { statuses[0] = meet(address, "job", 0, 3, soon()); });
    Fd dies = call(address);
    std::vector<std::byte> says = wire::frame(wire::kHello, [&](FieldWriter& fields) {
      fields.text(wire::kMagic);
      fields.u8(wire::kVersion);
      fields.u32(1);
      fields.u32(3);
      fields.text("job");
    });
    const std::vector<std::byte> set = wire::frame(wire::kSet, [&](FieldWriter& fields) {
      fields.text("card/1");
      fields.text("old");
    });
    says.insert(says.end(), set.begin(), set.end());
    CHECK(::send(*dies, says.data(), says.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(says.size()));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 0 reads it
    dies.reset();
    std::jthread rank2([&] { statuses[2] = meet(address, "job", 2, 3, soon()); });
    std::jthread rank1([&] { statuses[1] = meet(address, "job", 1, 3, soon()); });
  }
  require_ok(statuses);
}
