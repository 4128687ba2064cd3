// Members that fail: late ranks, dead switches, deaf data paths, aborts. Every call ends, in bounded time, with who and
// where.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "protocols/wire.h"
#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string expect(int expected, int code, Comm& comm, const std::vector<std::string>& parts) {
  if (code != expected) return expect_code(expected, code, comm, "operation");
  for (const std::string& part : parts) {
    if (!says(comm.last_error(), part)) return "'" + comm.last_error() + "' does not say '" + part + "'";
  }
  return "";
}

// Starts `count` operations and waits for them after `then`: all must end with this code.
std::string all_end_with(int expected, Comm& comm, int rank, int ranks, int count, const std::function<void()>& then) {
  std::vector<std::unique_ptr<Exercise>> exercises;
  std::vector<gatun_request_t> requests(static_cast<size_t>(count), nullptr);
  for (int i = 0; i < count; ++i) {
    exercises.push_back(std::make_unique<Exercise>(Case{.count = 200'000, .salt = static_cast<uint64_t>(i)}, rank, ranks));
    if (const int code = exercises.back()->start(comm, nullptr, &requests[static_cast<size_t>(i)]))
      return expect_code(0, code, comm, "start");
  }
  then();
  for (gatun_request_t& request : requests) {
    const int code = gatun_wait(&request, -1);
    if (code != expected) return expect_code(expected, code, comm, "wait");
  }
  // It is finished, and says so at once.
  const int later = gatun_barrier(comm);
  return later == expected && gatun_comm_async_error(comm) == expected ? ""
                                                                       : expect_code(expected, later, comm, "a later call");
}

}  // namespace

TEST_CASE("failure__a_rank_that_never_calls_is_named", "[lib][system]") {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    std::atomic<int> failed{0};
    run_ranks(3, {.address = local.address(), .transport = transport, .timeout_ms = 1000}, [&](int rank, Comm& comm) {
      Exercise first({.count = 100}, rank, 3);
      if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
      if (rank == 2) {
        while (failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return std::string();
      }
      Exercise exercise({.count = 300'000}, rank, 3);
      const int code = exercise.run(comm);
      ++failed;
      return expect(
          GATUN_TIMEOUT, code, comm,
          {"allreduce of 300000 f32, sum (operation 1)", "timed out after 1", "rank 2 has not contributed to chunk",
           "of tree 0", local.address(), "has started only 1 operation, against 2"});
    });
  }
}

// Every operation in flight asks the controller, which answers a rank's latest question only; and each rank tells the
// others.
TEST_CASE("failure__the_late_rank_is_named_once_beside_several_in_flight", "[lib][system]") {
  const LocalSwitch local;
  std::atomic<int> failed{0};
  const RankOptions options{.address = local.address(), .timeout_ms = 1500, .fallback = "ring"};
  run_ranks(4, options, [&](int rank, Comm& comm) {
    if (rank == 3) {
      while (failed < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return std::string();
    }
    std::vector<float> data(10'000);
    std::vector<gatun_request_t> requests(5, nullptr);
    for (gatun_request_t& request : requests) {
      const int code =
          gatun_iallreduce(data.data(), data.data(), data.size(), GATUN_F32, GATUN_SUM, comm, nullptr, &request);
      if (code) return expect_code(0, code, comm, "start");
    }
    std::string wrong;
    for (gatun_request_t& request : requests) {
      const int code = gatun_wait(&request, -1);
      if (wrong.empty()) {
        wrong = expect(GATUN_TIMEOUT, code, comm,
                       {"timed out after 1500ms: rank 3 has not contributed to chunk", "waits for rank 3 (",
                        "which has started only 0 operations, against"});
      }
    }
    ++failed;
    const std::string error = comm.last_error();
    if (error.find("gave up: ") != error.rfind("gave up: ")) return "told twice: " + error;
    return wrong;
  });
}

// Connections that idle for several keep-alives stay; one operation too many afterwards ends with both sides' numbers.
TEST_CASE("failure__after_a_long_idle_the_odd_operation_is_named", "[lib][system]") {
  const LocalSwitch local({.keepalive = 1 * kSecond});
  std::atomic<bool> failed{false};
  run_ranks(2, {.address = local.address(), .timeout_ms = 1000}, [&](int rank, Comm& comm) {
    for (int round = 0; round < 2; ++round) {
      Exercise exercise({.count = 100}, rank, 2);
      if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "round " + std::to_string(round));
      if (round == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    }
    if (rank == 1) {
      while (!failed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return std::string();
    }
    Exercise odd({.count = 100}, rank, 2);
    const int code = odd.run(comm);
    failed = true;
    return expect(GATUN_TIMEOUT, code, comm, {"(operation 2)", "rank 1", "has started only 2 operations, against 3"});
  });
}

TEST_CASE("failure__timeout_of_one_call_counts_from_its_start", "[lib][system]") {
  const LocalSwitch local;
  run_ranks(2, {.address = local.address(), .transport = "shm"}, [&](int rank, Comm& comm) {
    gatun_call_t call = GATUN_CALL_INIT;
    call.timeout_ms = 300;
    float value = 1;
    gatun_request_t request = nullptr;
    if (rank == 1) {
      while (gatun_comm_async_error(comm) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return std::string();
    }
    if (const int code = gatun_iallreduce(&value, &value, 1, GATUN_F32, GATUN_SUM, comm, &call, &request))
      return expect_code(0, code, comm, "start");
    if (gatun_wait(&request, 1) != GATUN_IN_PROGRESS || gatun_test(&request) != GATUN_IN_PROGRESS)
      return std::string("ended early");
    return expect(GATUN_TIMEOUT, gatun_wait(&request, -1), comm, {"timed out after 300ms", "rank 1"});
  });
}

TEST_CASE("failure__a_dead_switch_ends_everything", "[lib][system]") {
  for (const char* transport : {"shm", "udp"}) {
    auto local = std::make_unique<LocalSwitch>();
    std::atomic<int> started{0};
    std::thread killer([&] {
      while (started < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      local.reset();
    });
    const std::string address = local->address();
    // Rank 2 does not take part, so that the operations are unfinished when the switch goes.
    run_ranks(3, {.address = address, .transport = transport}, [&](int rank, Comm& comm) {
      std::string wrong = all_end_with(GATUN_SWITCH_LOST, comm, rank, 3, rank == 2 ? 0 : 4, [&] {
        ++started;
        while (rank == 2 && gatun_comm_async_error(comm) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      return wrong.empty() && !says(comm.last_error(), address) ? comm.last_error() : wrong;
    });
    killer.join();
  }
}

TEST_CASE("failure__a_switch_that_stops_says_so", "[lib][system]") {
  LocalSwitch local;
  std::atomic<int> started{0};
  std::thread stopper([&] {
    while (started < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    local.stop("gatund stops: maintenance");
  });
  run_ranks(2, {.address = local.address()}, [&](int rank, Comm& comm) {
    std::string wrong = all_end_with(GATUN_SWITCH_LOST, comm, rank, 2, rank == 0 ? 2 : 0, [&] {
      ++started;
      while (gatun_comm_async_error(comm) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return wrong.empty() && !says(comm.last_error(), "maintenance") ? comm.last_error() : wrong;
  });
  stopper.join();
}

// Abort from another thread releases every waiter, here and on the other ranks.
TEST_CASE("failure__abort_from_any_thread", "[lib][system]") {
  const LocalSwitch local;
  std::atomic<int> waiting{0};
  run_ranks(3, {.address = local.address(), .transport = "shm"}, [&](int rank, Comm& comm) {
    std::vector<std::thread> waiters;
    std::atomic<int> aborted{0};
    if (rank != 2) {
      for (int i = 0; i < 4; ++i) {
        waiters.emplace_back([&] {
          ++waiting;
          if (gatun_barrier(comm) == GATUN_ABORTED) ++aborted;
        });
      }
    } else {
      while (waiting < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gatun_comm_abort(comm);
    }
    for (std::thread& waiter : waiters) waiter.join();
    if (rank != 2 && aborted != 4) return std::to_string(aborted) + " of 4 waiters were aborted";
    return expect(GATUN_ABORTED, gatun_barrier(comm), comm, {"rank 2"});
  });
}

// A rank that leaves in order while others still need it: they learn at once, not at the deadline.
TEST_CASE("failure__a_rank_that_left_is_named", "[lib][system]") {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    run_ranks(3, {.address = local.address(), .transport = transport, .timeout_ms = 60'000}, [&](int rank, Comm& comm) {
      Exercise together({.count = 1000}, rank, 3);
      if (const int code = together.run(comm)) return expect_code(0, code, comm, "together");
      if (rank == 1) return std::string();  // leaves
      Exercise exercise({.count = 1000}, rank, 3);
      return expect(GATUN_RANK_LOST, exercise.run(comm), comm, {"rank 1", "left"});
    });
  }
}

// The operation of the ranks that are quick is complete although they leave before the slow one has its results.
TEST_CASE("failure__leaving_early_harms_no_finished_operation", "[lib][system]") {
  const LocalSwitch local;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const RankOptions options{.address = local.address(),
                              .job = std::to_string(seed),
                              .transport = "udp",
                              .payload_bytes = 512,
                              .wrap = lossy(seed, 0.05, 0, 0, 0)};
    run_ranks(3, options, [&](int rank, Comm& comm) {
      Exercise exercise({.count = 5000}, rank, 3);
      const int code = exercise.run(comm);
      return code == 0 ? exercise.verify() : expect_code(0, code, comm, "allreduce");
    });
  }
}

TEST_CASE("failure__no_answer_on_the_data_path_is_found_at_join", "[lib][system]") {
  const LocalSwitch local({.deaf = [](const RxPacket&) { return true; }});
  std::string texts[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      texts[rank] = Comm(2, rank, {.address = local.address(), .transport = "udp", .join_timeout_ms = 1500}).error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) CHECK(says(text, "no answer on the data path from 127.0.0.1:"));
}

TEST_CASE("failure__full_packets_that_do_not_pass_are_found_at_join", "[lib][system]") {
  const LocalSwitch local({.deaf = [](const RxPacket& packet) { return packet.payload_bytes > 1200; }});
  std::string texts[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      texts[rank] =
          Comm(2, rank, {.address = local.address(), .transport = "udp", .payload_bytes = 8960, .join_timeout_ms = 1500})
              .error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) {
    CHECK(says(text, "packets of 8992 bytes do not pass"));
    CHECK(says(text, "MTU"));
  }
}

// The data path breaks later: an error at the deadline says that the switch is silent.
TEST_CASE("failure__a_data_path_that_breaks_ends_at_the_deadline", "[lib][system]") {
  std::atomic<bool> broken{false};
  const LocalSwitch local({.deaf = [&](const RxPacket&) { return broken.load(); }});
  std::atomic<int> ready{0};
  run_ranks(2, {.address = local.address(), .transport = "udp", .timeout_ms = 700}, [&](int rank, Comm& comm) {
    Exercise first({.count = 100}, rank, 2), second({.count = 100}, rank, 2);
    if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
    ++ready;
    while (ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    broken = true;
    return expect(GATUN_TIMEOUT, second.run(comm), comm, {"has no answer", "last heard"});
  });
}
