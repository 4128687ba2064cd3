#include <netinet/in.h>
#include <poll.h>

#include "fallback_ranks.h"
#include "host/fallback/mesh_connect.h"

using namespace gatun;

namespace {

Fd call(const MeshCard& card) {
  Fd fd(::socket(card.endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(*fd, card.endpoint.address(), card.endpoint.size) == 0);
  return fd;
}

bool contains(const Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("card__survives_its_text", "[mesh]") {
  auto listener = MeshListener::open("127.0.0.1:7117");
  REQUIRE(listener.ok());
  const MeshCard& card = listener.value()->card();
  CHECK(card.endpoint.loopback());
  CHECK(card.endpoint.port() != 0);
  auto again = MeshCard::decode(card.encode());
  REQUIRE(again.ok());
  CHECK(again->endpoint.text() == card.endpoint.text());
  CHECK(again->host == card.host);
  CHECK(again->pid == card.pid);
  CHECK(again->cookie == card.cookie);
  CHECK(MeshListener::open("127.0.0.1").value()->card().cookie != card.cookie);
  MeshCard other = card;
  other.host = "b";
  other.pid = 77;
  CHECK(other.text(2) == "rank 2 (host b, pid 77)");
}

TEST_CASE("card__refuses_other_texts", "[mesh]") {
  const std::string cookie(32, 'a');
  CHECK(MeshCard::decode("gatun-card-2 10.0.0.1 9 h 5 " + cookie).ok());
  for (const std::string& text :
       {std::string(), std::string("hello"), "gatun-card-3 10.0.0.1 9 h 5 " + cookie, "gatun-card-2 host 9 h 5 " + cookie,
        "gatun-card-2 10.0.0.1 0 h 5 " + cookie, "gatun-card-2 10.0.0.1 70000 h 5 " + cookie,
        "gatun-card-2 10.0.0.1 9 h x " + cookie, "gatun-card-2 10.0.0.1 9 h 5 " + cookie + "a",
        "gatun-card-2 10.0.0.1 9 h 5 " + cookie + " b", std::string("gatun-card-2 10.0.0.1 9 h")}) {
    INFO(text);
    CHECK_FALSE(MeshCard::decode(text).ok());
  }
}

TEST_CASE("messages__reach_every_rank_in_order", "[mesh]") {
  std::vector<Ears> ears(4);
  Group group(4);
  for (uint32_t r = 0; r < 4; ++r) group[r].run(&ears[r]);
  group[1].send_all(bytes_of("first"));
  group[1].send_all({});
  const std::string large(Mesh::kMessageBytesMax, 'x');
  group[1].send_all(bytes_of(large));
  group[1].send_all(bytes_of("last"));
  for (uint32_t r : {0u, 2u, 3u}) {
    const Ears::Heard heard = ears[r].messages(4);
    REQUIRE(heard.size() == 4);
    CHECK(heard[0] == std::pair<uint32_t, std::string>(1, "first"));
    CHECK(heard[1].second.empty());
    CHECK((heard[2].second == large));
    CHECK(heard[3].second == "last");
  }
}

TEST_CASE("send__never_blocks_on_a_rank_that_does_not_read", "[mesh]") {
  Ears ears[2];
  Group group(2);
  group[0].run(&ears[0]);
  const auto message = bytes_of(std::string(Mesh::kMessageBytesMax, 'y'));
  for (int i = 0; i < 20; ++i) group[0].send(1, message);  // more than the sockets hold
  group[1].run(&ears[1]);
  CHECK(ears[1].messages(20).size() == 20);
}

TEST_CASE("mesh__says_once_that_a_rank_has_gone_after_its_last_words", "[mesh]") {
  std::vector<Ears> ears(3);
  Group group(3);
  for (uint32_t r = 0; r < 3; ++r) group[r].run(&ears[r]);
  group[2].send_all(bytes_of("bye"));
  group.close(2);
  for (uint32_t r : {0u, 1u}) {
    REQUIRE(ears[r].ends(1).size() == 1);
    CHECK(ears[r].ends(1)[0] == std::pair<uint32_t, std::string>(2, "closed its connection"));
    REQUIRE(ears[r].messages(1).size() >= 1);
    CHECK(ears[r].messages(1)[0] == std::pair<uint32_t, std::string>(2, "bye"));
  }
  group[1].send_all(bytes_of("still here"));  // to a closed connection as well: no signal, no trouble
  CHECK(ears[0].messages(2).back().second == "still here");
}

TEST_CASE("stop__ends_events_and_is_repeatable", "[mesh]") {
  Ears ears;
  Group group(2);
  group[0].run(&ears);
  group[0].stop();
  group[0].stop();
  group[1].send(0, bytes_of("late"));
  group.close(1);
  CHECK(ears.messages(0).empty());
  CHECK(ears.ends(0).empty());
}

TEST_CASE("connect__turns_strangers_away_undisturbed", "[mesh]") {
  Listeners set(3);
  const MeshCard target = set.cards[0];
  std::vector<Fd> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(call(target));  // silent
  Fd talker = call(target);
  const std::string wrong = "GET / HTTP/1.1\r\n\r\n";
  REQUIRE(::send(*talker, wrong.data(), wrong.size(), MSG_NOSIGNAL) > 0);
  Fd forger = call(target);  // a HELLO with everything right but the cookie
  std::string hello = "gatunmsh";
  hello += std::string("\x02\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03", 16) + std::string(32, '0');
  REQUIRE(::send(*forger, hello.data(), hello.size(), MSG_NOSIGNAL) == 56);
  { Fd hasty = call(target); }
  Group group(std::move(set));
  char byte;
  CHECK(::recv(*forger, &byte, 1, 0) <= 0);  // no ANSWER
  CHECK(::recv(*talker, &byte, 1, 0) <= 0);
  Ears ears;
  group[0].run(&ears);
  group[1].send(0, bytes_of("hello"));
  CHECK(ears.messages(1).size() == 1);
}

TEST_CASE("connect__names_the_ranks_that_do_not_come", "[mesh]") {
  Listeners set(3);
  set.cards[2].host = "b";
  set.cards[2].pid = 77;
  set.listeners[2].reset();
  const auto statuses = on_ranks(2, [&](uint32_t r) {
    return Mesh::connect(std::move(set.listeners[r]), r, set.cards, now_ns() + 300 * kMs).status();
  });
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.code() == Code::kTimeout);
    CHECK(contains(status, "rank 2 (host b, pid 77)"));
    CHECK_FALSE(contains(status, "rank 1 (host"));
  }
}

TEST_CASE("connect__says_why_a_lower_rank_is_not_reached", "[mesh]") {
  Listeners set(2);
  set.listeners[0].reset();
  const Status status = Mesh::connect(std::move(set.listeners[1]), 1, set.cards, now_ns() + 200 * kMs).status();
  CHECK(status.code() == Code::kTimeout);
  CHECK(contains(status, "Connection refused"));
}

// Played by hand: a rank of another version, once as the one that calls and once as the one that is called.
TEST_CASE("connect__names_both_versions", "[mesh]") {
  Listeners set(2);
  const Fd caller = call(set.cards[0]);
  const std::string hello = "gatunmsh\x07 and what else that version says";
  REQUIRE(::send(*caller, hello.data(), hello.size(), MSG_NOSIGNAL) > 0);
  Status called = Mesh::connect(std::move(set.listeners[0]), 0, set.cards, now_ns() + 300 * kMs).status();
  char answer[64] = "";
  CHECK(::recv(*caller, answer, sizeof answer, 0) == 48);
  CHECK(std::string(answer, 9) == "gatunmsh\x02");
  CHECK(std::string(answer + 16, 32) == std::string(32, '\0'));  // no cookie
  CHECK(contains(called, "speaks version 7 of the mesh, this rank speaks 2"));

  Listeners other(2);
  Status calls;
  std::thread joining(
      [&] { calls = Mesh::connect(std::move(other.listeners[1]), 1, other.cards, now_ns() + 20 * kSecond).status(); });
  pollfd called_at{other.listeners[0]->fd(), POLLIN, 0};
  REQUIRE(::poll(&called_at, 1, 10'000) == 1);
  const Fd accepted(::accept(other.listeners[0]->fd(), nullptr, nullptr));
  CHECK(::send(*accepted, "gatunmsh\x01", 9, MSG_NOSIGNAL) == 9);
  joining.join();
  CHECK(calls.code() == Code::kRefused);
  CHECK(contains(calls, other.cards[0].text(0) + " speaks version 1 of the mesh, this rank speaks 2"));
}

// Killed between its card and its connections: the others need not wait for their deadline.
TEST_CASE("connect__names_a_rank_that_has_died", "[mesh]") {
  const uint32_t dead = GENERATE(0u, 1u);
  const auto opened = MeshListener::open("127.0.0.1");
  const MeshListener* alive = opened.value().get();
  std::vector<MeshCard> cards(2, alive->card());
  cards[dead] = MeshListener::open("127.0.0.1").value()->card();
  const auto result = connect_mesh(*alive, 1 - dead, cards, now_ns() + 60 * kSecond);
  REQUIRE(!result.ok());
  CHECK(result.status().code() == Code::kRankLost);
  const std::string text = result.status().message();
  CHECK(text.find("rank " + std::to_string(dead)) != std::string::npos);
  CHECK(text.find("has died while the ranks connect with each other") != std::string::npos);
}

TEST_CASE("mesh__of_one_rank_works", "[mesh]") {
  Ears ears;
  Group group(1);
  group[0].run(&ears);
  group[0].send_all(bytes_of("nobody"));
  CHECK(group[0].wait_all(soon()).ok());
}

TEST_CASE("mesh__leaves_no_descriptor_and_no_thread", "[mesh]") {
  { Group warm(3); }
  const size_t fds = descriptors(), tasks = threads();
  for (int i = 0; i < 50; ++i) {
    std::vector<Ears> ears(3);
    Group group(3);
    for (uint32_t r = 0; r < 3; ++r) group[r].run(&ears[r]);
    group[0].send_all(bytes_of("x"));
    if (i % 2) group.close(1);
  }
  CHECK(descriptors() == fds);
  CHECK(threads() == tasks);
}
