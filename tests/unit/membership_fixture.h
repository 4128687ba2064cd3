// A Membership with everything it says collected, for membership*_test.cc. Ranks are connection numbers.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "protocols/membership.h"

namespace gatun {

inline constexpr TimeNs kBegin = 1000 * kSecond;

struct MembershipFixture {
  explicit MembershipFixture(Membership::Config c = base()) : config(std::move(c)), machine(config) {}

  static Membership::Config base() {
    Membership::Config config;
    config.facts = {.host_identity = "here", .udp_payload_bytes = 65472, .udp_receive_bytes = 1 << 20, .lanes = 1};
    config.connections_max = 200;
    config.keepalive = 3 * kSecond;
    config.first_seq = 100;
    config.random = [generator = std::mt19937_64(7)]() mutable { return generator(); };
    return config;
  }

  static control::Join join(uint32_t rank, uint32_t size, const std::string& job = "train") {
    return {.job = job,
            .rank = rank,
            .size = size,
            .path_payload_bytes = 1472,
            .receive_bytes = 1 << 20,
            .join_timeout_ms = 10000,
            .pid = 1000 + rank,
            .host = "node" + std::to_string(rank),
            .host_identity = "there",
            .software = "test"};
  }

  void open(ConnId conn) {
    machine.on_open(conn, "10.0.0.1:" + std::to_string(conn), now);
    pump();
  }
  void say(ConnId conn, const control::Message& message) {
    machine.on_message(conn, message, now);
    pump();
  }
  void close(ConnId conn, const std::string& why = "") {
    machine.on_close(conn, why, now);
    pump();
  }
  void at(TimeNs time) {
    now = time;
    machine.on_timer(now);
    pump();
    REQUIRE(machine.poll_timer() > now);  // else the daemon would spin
  }
  void pump() {
    ConnId conn;
    control::Message message;
    while (machine.poll_send(&conn, &message)) {
      const auto* waiting = std::get_if<control::Waiting>(&message);
      if (waiting) waits[conn].push_back(waiting->text);
      if (!waiting) inbox[conn].push_back(message);
    }
    Membership::Action action;
    while (machine.poll_action(&action)) actions.push_back(action);
    while (machine.poll_close(&conn)) closed.insert(conn);
    std::string line;
    while (machine.poll_log(&line)) logs.push_back(line);
  }

  // conn = base + rank for all ranks.
  void join_all(uint32_t size, ConnId base = 0, const std::string& job = "train") {
    for (uint32_t rank = 0; rank < size; ++rank) {
      open(base + rank);
      say(base + rank, join(rank, size, job));
    }
  }
  uint32_t admit(uint32_t trees = 1) {
    REQUIRE(!actions.empty());
    REQUIRE(actions.back().kind == Membership::Action::kAdmit);
    uint32_t handle = actions.back().job;
    machine.on_admitted(handle,
                        Admission{{},
                                  actions.back().plan.window,
                                  actions.back().plan.payload_bytes,
                                  std::vector<Admission::Tree>(trees, {7117, 0}),
                                  "socket"},
                        now);
    pump();
    return handle;
  }
  uint32_t run(uint32_t size, ConnId base = 0, const std::string& job = "train") {
    join_all(size, base, job);
    uint32_t handle = admit();
    for (uint32_t rank = 0; rank < size; ++rank) say(base + rank, control::Ready{});
    for (uint32_t rank = 0; rank < size; ++rank) REQUIRE(last<control::Start>(base + rank));
    return handle;
  }

  template <typename M>
  const M* last(ConnId conn) {
    return inbox[conn].empty() ? nullptr : std::get_if<M>(&inbox[conn].back());
  }
  std::string refusal(ConnId conn) {
    auto* refused = last<control::Refused>(conn);
    return refused ? refused->text : "not refused";
  }
  size_t said(ConnId conn) { return inbox[conn].size(); }

  Membership::Config config;
  Membership machine;
  TimeNs now = kBegin;
  std::map<ConnId, std::vector<control::Message>> inbox;
  std::map<ConnId, std::vector<std::string>> waits;  // texts of Waiting, which come by themselves
  std::vector<Membership::Action> actions;
  std::set<ConnId> closed;
  std::vector<std::string> logs;
};

}  // namespace gatun
