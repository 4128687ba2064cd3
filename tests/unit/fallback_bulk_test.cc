#include <sys/resource.h>

#include <random>

#include "fallback_ranks.h"

using namespace gatun;

namespace {

bool contains(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("bulk__moves_frames_of_any_length_in_order", "[bulk]") {
  Group group(2);
  std::mt19937 random(1);
  std::vector<std::vector<char>> frames;
  for (size_t bytes : {0, 1, 11, 12, 13, 4096, 0, 3'000'000, 65537}) {
    auto& frame = frames.emplace_back(bytes);
    for (char& c : frame) c = static_cast<char>(random());
  }
  std::vector<std::vector<char>> received(frames.size());
  require_ok(on_ranks(2, [&](uint32_t r) {
    for (size_t i = 0; i < frames.size(); ++i) {
      received[i].resize(r == 1 ? frames[i].size() : received[i].size());
      if (r == 0) group[0].post_send(1, frames[i].data(), frames[i].size(), static_cast<uint32_t>(i));
      if (r == 1) group[1].post_receive(0, received[i].data(), frames[i].size(), static_cast<uint32_t>(i));
    }
    return group[r].wait_all(soon());
  }));
  CHECK(received == frames);
  CHECK(group[0].bulk_bytes_sent() == group[1].bulk_bytes_received());
  CHECK(group[0].bulk_bytes_received() == 0);
}

TEST_CASE("bulk__exchanges_more_than_sockets_hold_between_all", "[bulk]") {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kBytes = 12 << 20;
  Group group(kRanks);
  require_ok(on_ranks(kRanks, [&](uint32_t r) {
    std::vector<std::vector<char>> in(kRanks, std::vector<char>(kBytes));
    const std::vector<char> out(kBytes, static_cast<char>('a' + r));
    BulkStreams::Ticket first = 0;
    for (uint32_t p = 0; p < kRanks; ++p) {
      if (p == r) continue;
      first = group[r].post_send(p, out.data(), kBytes, 1);
    }
    for (uint32_t p = 0; p < kRanks; ++p) {
      if (p != r) group[r].post_receive(p, in[p].data(), kBytes, 1);
    }
    if (Status status = group[r].wait(first, soon()); !status.ok()) return status;  // sends alone must not lock
    if (!group[r].done(first)) return Status(Code::kInternal, "not done");
    if (Status status = group[r].wait_all(soon()); !status.ok()) return status;
    for (uint32_t p = 0; p < kRanks; ++p) {
      if (p != r && in[p] != std::vector<char>(kBytes, static_cast<char>('a' + p)))
        return Status(Code::kInternal, "wrong bytes");
    }
    return Status();
  }));
}

TEST_CASE("wait__names_a_difference_of_label_or_length", "[bulk]") {
  for (const bool label : {true, false}) {
    Group group(2);
    char data[8] = {};
    group[0].post_send(1, data, 4, 7);
    CHECK(group[0].wait_all(soon()).ok());
    const auto ticket = group[1].post_receive(0, data, label ? 4 : 5, label ? 8 : 7);
    const Status status = group[1].wait(ticket, soon());
    INFO(status.message());
    CHECK(status.code() == Code::kInternal);
    CHECK(contains(status, group[1].card(0).text(0)));
    CHECK(group[1].wait_all(soon()).code() == Code::kInternal);  // from now on
  }
}

TEST_CASE("wait__names_the_late_rank_at_the_deadline", "[bulk]") {
  Group group(3);
  char data[100];
  group[0].post_send(1, data, 40, 1);
  CHECK(group[0].wait_all(soon()).ok());
  group[1].post_receive(2, data, 100, 1);
  const auto done = group[1].post_receive(0, data, 40, 1);
  const auto ticket = group[1].post_receive(0, data, 60, 1);
  CHECK(group[1].wait(done, soon()).ok());
  const Status status = group[1].wait(ticket, now_ns() + 50 * kMs);
  INFO(status.message());
  CHECK(status.code() == Code::kTimeout);
  CHECK(contains(status, group[1].card(0).text(0)));
  CHECK(contains(status, "0 of 60 bytes"));
}

TEST_CASE("wait__burns_no_time_while_nothing_comes", "[bulk]") {
  Group group(2);
  char data[1];
  const auto ticket = group[0].post_receive(1, data, 1, 1);
  rusage before{}, after{};
  ::getrusage(RUSAGE_THREAD, &before);
  CHECK(group[0].wait(ticket, now_ns() + 500 * kMs).code() == Code::kTimeout);
  ::getrusage(RUSAGE_THREAD, &after);
  auto used_us = [](const rusage& u) {
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1'000'000 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
  };
  CHECK(used_us(after) - used_us(before) < 50'000);
}

TEST_CASE("wait__names_a_rank_that_has_closed", "[bulk]") {
  for (const bool receiving : {true, false}) {
    Group group(3);
    std::vector<char> data(32 << 20);
    auto ticket =
        receiving ? group[0].post_receive(2, data.data(), 100, 1) : group[0].post_send(2, data.data(), data.size(), 1);
    const std::string lost = group[0].card(2).text(2);
    std::thread closer([&] { group.close(2); });
    const Status status = group[0].wait(ticket, soon());
    closer.join();
    INFO(status.message());
    CHECK(status.code() == Code::kRankLost);
    CHECK(contains(status, lost));
  }
}

TEST_CASE("wait__is_not_disturbed_by_the_end_of_a_rank_that_has_nothing_to_say", "[bulk]") {
  Group group(3);
  char data[10] = {};
  group[2].post_send(0, "bye", 3, 9);
  CHECK(group[2].wait_all(soon()).ok());
  group.close(2);
  const auto ticket = group[0].post_receive(1, data, 4, 1);
  std::thread sender([&] {
    group[1].post_send(0, "more", 4, 1);
    (void)group[1].wait_all(soon());
  });
  CHECK(group[0].wait(ticket, soon()).ok());
  sender.join();
  const auto last = group[0].post_receive(2, data, 3, 9);
  CHECK(group[0].wait(last, soon()).ok());  // what it had sent is still there
}

TEST_CASE("interrupt__wakes_a_wait_and_stays", "[bulk]") {
  Group group(2);
  char data[1];
  const auto ticket = group[0].post_receive(1, data, 1, 1);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group[0].interrupt(Status(Code::kRankLost, "rank 1 went away"));
  });
  const TimeNs began = now_ns();
  const Status status = group[0].wait(ticket, kNever);
  CHECK(now_ns() - began < 10 * kSecond);
  other.join();
  CHECK(status.code() == Code::kRankLost);
  CHECK(std::string(status.message()) == "rank 1 went away");
  group[0].interrupt(Status(Code::kAborted, "second"));
  CHECK(group[0].wait_all(soon()).code() == Code::kRankLost);
  CHECK(group[1].wait_all(soon()).ok());  // the others know nothing of it
}
