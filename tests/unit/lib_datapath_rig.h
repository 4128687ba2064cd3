// Rig: a Datapath whose only link is in the test's hands.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "host/lib/datapath.h"
#include "tests/unit/lib_fake_link.h"

namespace gatun {

inline constexpr uint32_t kJob = 0x1234;
inline constexpr uint32_t kPayload = 64;
inline constexpr TimeNs kNow = kSecond;

// A datapath of rank 0 of 2 over one fake link.
struct Rig {
  explicit Rig(Datapath::Config config = {}, std::unique_ptr<FakeLink> fake = std::make_unique<FakeLink>(false))
      : link(*fake) {
    config.job = kJob;
    config.payload_bytes = kPayload;
    config.worker.trees = std::max<uint32_t>(1, static_cast<uint32_t>(config.trees.size()));
    config.worker.window = 4;
    config.worker.window_initial = 4;
    config.worker.reliable = link.caps().reliable;
    config.checksum = !link.caps().reliable;
    if (config.trees.empty()) {
      config.trees.push_back({.child = 3, .arena = link.arena(0).empty() ? nullptr : link.arena(0).data()});
    }
    std::vector<std::unique_ptr<Transport>> links;
    links.push_back(std::move(fake));
    datapath = std::make_unique<Datapath>(std::move(config), std::move(links));
  }

  Request* submit(uint64_t bytes, Collective collective = Collective::kAllReduce, uint32_t rank = 0) {
    Request& request = *requests.emplace_back(std::make_unique<Request>());
    send.resize(std::max<size_t>(send.size(), bytes));
    std::iota(reinterpret_cast<uint8_t*>(send.data()), reinterpret_cast<uint8_t*>(send.data() + send.size()), uint8_t{1});
    recv.assign(bytes, std::byte{0xee});
    request.contract = {.collective = collective, .type = Type::kU8, .op = Op::kSum, .count = bytes};
    request.operation =
        Operation(request.contract, send.data(), recv.data(), {.rank = rank, .ranks = 2, .payload_bytes = kPayload});
    datapath->submit(&request);
    return &request;
  }

  // Until nothing is sent any more.
  void echo_all() {
    TimeNs now = kNow;
    do {
      echo();
    } while (datapath->pass(now++));
  }
  // Answers what was sent with its own payload.
  void echo() {
    for (; !link.sent.empty(); link.sent.pop_front()) {
      const FakeLink::Packet answer = link.answer_to(link.sent.front());
      link.push(answer.header, answer.payload);
    }
  }

  FakeLink& link;
  std::unique_ptr<Datapath> datapath;
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<std::byte> send, recv;
};

}  // namespace gatun
