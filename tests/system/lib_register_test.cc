// gatun_register() where it changes nothing: on every transport and way. Where it spares copies: tests/rdma.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/gatund_process.h"
#include "tests/system/lib_ranks.h"

using namespace gatun;

namespace {

constexpr size_t kCount = 100'000;

// One sum in place, checked.
std::string sum(Comm& comm, int ranks, std::vector<float>& data) {
  std::fill(data.begin(), data.end(), 3.0f);
  if (const int code = gatun_allreduce(data.data(), data.data(), data.size(), GATUN_F32, GATUN_SUM, comm)) {
    return expect_code(0, code, comm, "all-reduce");
  }
  const auto wrong = [&](float value) { return value != 3.0f * static_cast<float>(ranks); };
  return std::any_of(data.begin(), data.end(), wrong) ? "a sum is wrong" : "";
}

std::string register_all(Comm& comm, std::vector<float>& data) {
  return expect_code(0, gatun_register(comm, data.data(), data.size() * sizeof(float)), comm, "register");
}

}  // namespace

TEST_CASE("register__arguments_are_named", "[lib][system]") {
  Comm comm(1, 0, {});
  std::vector<float> data(4);
  const auto said = [&](int code, const std::string& part) {
    CHECK(code == GATUN_INVALID_ARGUMENT);
    CHECK(comm.last_error().find(part) != std::string::npos);
  };
  said(gatun_register(comm, nullptr, 4), "gatun_register: address is NULL");
  said(gatun_register(comm, data.data(), 0), "gatun_register: bytes is 0");
  said(gatun_register(comm, data.data(), SIZE_MAX - 4), "gatun_register: no memory is 18446744073709551611 bytes long");
  said(gatun_register(comm, data.data(), size_t{1} << 63), "gatun_register: no memory is 9223372036854775808 bytes long");
  said(gatun_deregister(comm, data.data()), "gatun_deregister: no memory that begins at this address is registered");
  CHECK(register_all(comm, data).empty());
  said(gatun_register(comm, data.data(), 4), "16 bytes are registered at this address, and these are 4");
  CHECK(gatun_deregister(comm, data.data()) == 0);
  CHECK(gatun_register(nullptr, data.data(), 4) == GATUN_INVALID_ARGUMENT);
  CHECK(gatun_deregister(nullptr, data.data()) == GATUN_INVALID_ARGUMENT);
}

TEST_CASE("register__every_transport_goes_on_as_before", "[lib][system]") {
  const std::string transport = GENERATE("shm", "udp");
  LocalSwitch here;
  run_ranks(3, {.address = here.address(), .transport = transport}, [&](int rank, Comm& comm) {
    std::vector<float> data(kCount);
    // Rank 2 registers nothing; rank 1 twice.
    for (int times = 0; times < (rank + 1) % 3; ++times) {
      if (std::string wrong = register_all(comm, data); !wrong.empty()) return wrong;
    }
    if (std::string wrong = sum(comm, 3, data); !wrong.empty()) return wrong;
    for (int times = 0; times < (rank + 1) % 3; ++times) {
      if (const int code = gatun_deregister(comm, data.data())) return expect_code(0, code, comm, "deregister");
    }
    if (gatun_deregister(comm, data.data()) != GATUN_INVALID_ARGUMENT) return std::string("registered once too often");
    return sum(comm, 3, data);
  });
}

// Not before the operation's end: the other rank calls it only when the memory is registered.
TEST_CASE("register__while_another_thread_waits_for_an_operation", "[lib][system]") {
  LocalSwitch here;
  std::atomic<bool> registered{false};
  run_ranks(2, {.address = here.address()}, [&](int rank, Comm& comm) {
    std::vector<float> data(kCount), other(kCount);
    std::string said;
    std::thread thread;
    if (rank == 0) {
      thread = std::thread([&] {
        while (comm.stats().operations == 0) std::this_thread::yield();
        for (int i = 0; i < 100 && said.empty(); ++i) {
          said = register_all(comm, other);
          if (said.empty()) said = expect_code(0, gatun_deregister(comm, other.data()), comm, "deregister");
        }
        registered = true;
      });
    }
    std::string wrong = expect_code(0, gatun_barrier(comm), comm, "barrier");
    while (rank == 1 && !registered) std::this_thread::yield();
    if (wrong.empty()) wrong = sum(comm, 2, data);
    if (thread.joinable()) thread.join();
    return wrong.empty() ? said : wrong;
  });
}

TEST_CASE("register__through_failovers_and_back", "[lib][system]") {
  GatundProcess gatund;
  const auto meet = [&](Comm& comm) { return expect_code(0, gatun_barrier(comm), comm, "barrier"); };
  run_ranks(2, {.address = gatund.address(), .fallback = "ring", .detect_ms = 300}, [&](int rank, Comm& comm) {
    std::vector<float> first(kCount), second(kCount);
    std::string wrong = register_all(comm, first);
    if (wrong.empty()) wrong = sum(comm, 2, first);
    if (rank == 0) gatund.end();
    if (wrong.empty()) wrong = sum(comm, 2, first);
    if (wrong.empty()) wrong = register_all(comm, second);  // on the ring, or on the way there
    if (wrong.empty()) wrong = sum(comm, 2, second);
    if (wrong.empty()) wrong = expect_code(0, gatun_deregister(comm, first.data()), comm, "deregister");
    if (wrong.empty()) wrong = meet(comm);
    if (rank == 0) gatund.start();
    for (int32_t back = 0; wrong.empty() && !back;) {
      wrong = sum(comm, 2, second);
      back = comm.stats().why[0] == 0;
      if (wrong.empty()) {
        wrong = expect_code(0, gatun_allreduce(&back, &back, 1, GATUN_I32, GATUN_MIN, comm), comm, "word");
      }
    }
    if (wrong.empty()) wrong = sum(comm, 2, second);
    if (wrong.empty()) wrong = expect_code(0, gatun_deregister(comm, second.data()), comm, "deregister");
    return wrong.empty() ? meet(comm) : wrong;
  });
}
