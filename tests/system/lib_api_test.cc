// The C API at its edges: arguments, one rank, many communicators, cycles that must leak nothing, and joins that must fail.
#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iostream>
#include <thread>

#include "host/base/os.h"
#include "host/base/placement.h"
#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

int entries(const char* folder) {
  DIR* dir = ::opendir(folder);
  int count = 0;
  while (dir && ::readdir(dir)) ++count;
  if (dir) ::closedir(dir);
  return count;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The code and sentence of a join that must fail.
std::pair<int, std::string> failed_join(int ranks, int rank, const RankOptions& options) {
  const Comm comm(ranks, rank, options);
  return {comm.code(), comm.error()};
}

}  // namespace

TEST_CASE("arguments__each_wrong_one_is_named", "[lib][system]") {
  Comm comm(1, 0, {});
  REQUIRE(comm.code() == 0);
  float data[4] = {1, 2, 3, 4};
  const auto said = [&](int code, const char* part) {
    CHECK(code == GATUN_INVALID_ARGUMENT);
    CHECK(says(gatun_last_error(comm), part));
  };
  said(gatun_allreduce(nullptr, data, 4, GATUN_F32, GATUN_SUM, comm), "gatun_allreduce: send is NULL");
  said(gatun_allreduce(data, nullptr, 4, GATUN_F32, GATUN_SUM, comm), "recv is NULL");
  said(gatun_allreduce(data, data, 4, static_cast<gatun_type_t>(99), GATUN_SUM, comm), "type 99");
  said(gatun_allreduce(data, data, 4, GATUN_F32, static_cast<gatun_op_t>(-1), comm), "op -1");
  said(gatun_broadcast(data, data, 4, GATUN_F32, 1, comm), "root 1 is out of range");
  said(gatun_reduce(data, data, 4, GATUN_F32, GATUN_SUM, -1, comm), "root -1 is out of range");
  said(gatun_allreduce(data, data, SIZE_MAX / 2, GATUN_F64, GATUN_SUM, comm), "more than memory can hold");
  said(gatun_allreduce(data, data, size_t{1} << 62, GATUN_I8, GATUN_SUM, comm), "more than memory can hold");
  said(gatun_iallreduce(data, data, 4, GATUN_F32, GATUN_SUM, comm, nullptr, nullptr), "request is NULL");
  gatun_request_t request = nullptr;
  gatun_call_t call = GATUN_CALL_INIT;
  call.size = 0;
  said(gatun_iallreduce(data, data, 4, GATUN_F32, GATUN_SUM, comm, &call, &request), "call->size is 0");
  call.size = sizeof call;
  call.timeout_ms = -5;
  said(gatun_iallreduce(data, data, 4, GATUN_F32, GATUN_SUM, comm, &call, &request), "timeout_ms is -5");
  said(gatun_comm_stats(comm, nullptr), "stats is NULL");

  const auto said_to_thread = [&](int code, const char* part) {
    CHECK(code == GATUN_INVALID_ARGUMENT);
    CHECK(says(gatun_last_error(nullptr), part));
  };
  said_to_thread(gatun_allreduce(data, data, 4, GATUN_F32, GATUN_SUM, nullptr), "gatun_allreduce: comm is NULL");
  said_to_thread(gatun_barrier(nullptr), "comm is NULL");
  said_to_thread(gatun_comm_destroy(nullptr), "comm is NULL");
  said_to_thread(gatun_test(nullptr), "request is NULL");
  said_to_thread(gatun_wait(&request, 0), "request is NULL");
  said_to_thread(gatun_version(nullptr), "version is NULL");
  gatun_comm_t made = nullptr;
  said_to_thread(gatun_comm_create(nullptr, 1, 0, nullptr), "comm is NULL");
  said_to_thread(gatun_comm_create(&made, 0, 0, nullptr), "nranks is 0");
  said_to_thread(gatun_comm_create(&made, 65, 0, nullptr), "nranks is 65");
  said_to_thread(gatun_comm_create(&made, 4, 4, nullptr), "rank 4 is out of range");
  said_to_thread(gatun_comm_create(&made, 4, -1, nullptr), "rank -1 is out of range");
  gatun_options_t options = GATUN_OPTIONS_INIT;
  options.size = 3;
  said_to_thread(gatun_comm_create(&made, 1, 0, &options), "options->size is 3");
  options = GATUN_OPTIONS_INIT;
  options.window = 3;
  said_to_thread(gatun_comm_create(&made, 1, 0, &options), "gatun_options_t.window");
  options = GATUN_OPTIONS_INIT;
  options.transport = "pigeon";
  said_to_thread(gatun_comm_create(&made, 1, 0, &options), "pigeon");
  CHECK(made == nullptr);
}

// A caller built against a later header: served unless it sets what this library does not know.
TEST_CASE("options__larger_struct_is_served_if_its_tail_is_zero", "[lib][system]") {
  struct Later {
    gatun_options_t known;
    uint64_t later;
  } options = {GATUN_OPTIONS_INIT, 0};
  options.known.size = sizeof options;
  gatun_comm_t comm = nullptr;
  REQUIRE(gatun_comm_create(&comm, 1, 0, &options.known) == GATUN_SUCCESS);
  gatun_comm_destroy(comm);
  options.later = 1;
  CHECK(gatun_comm_create(&comm, 1, 0, &options.known) == GATUN_UNSUPPORTED);
}

// The thread that calls it makes the progress, so a call that waited there would wait for ever.
TEST_CASE("done__a_call_from_it_is_refused", "[lib][system]") {
  const LocalSwitch local;
  run_ranks(2, {.address = local.address()}, [](int rank, Comm& comm) {
    struct Heard {
      gatun_comm_t comm;
      int code = 0;
      std::string text;
    } heard{.comm = comm, .text = {}};
    gatun_call_t call = GATUN_CALL_INIT;
    call.done = [](void* context, int, const char*) {
      auto* to = static_cast<Heard*>(context);
      to->code = gatun_barrier(to->comm);
      to->text = gatun_last_error(to->comm);
    };
    call.context = &heard;
    Exercise exercise({.count = 100}, rank, 2);
    gatun_request_t request = nullptr;
    if (const int code = exercise.start(comm, &call, &request)) return expect_code(0, code, comm, "start");
    if (const int code = gatun_wait(&request, -1)) return expect_code(0, code, comm, "wait");
    if (heard.code != GATUN_INVALID_ARGUMENT || !says(heard.text, "from a done function")) return "heard: " + heard.text;
    const int later = gatun_barrier(comm);
    return later == 0 ? exercise.verify() : expect_code(0, later, comm, "barrier");
  });
}

// Whatever the caller's thread is kept to; that thread itself stays where it is.
TEST_CASE("progress__runs_near_the_device", "[lib][system]") {
  const std::vector<int> cores = allowed_cores();
  REQUIRE(!cores.empty());
  if (cores.size() < 2) {
    std::cout << "[skipped] progress__runs_near_the_device: there is one core only\n";
    return;
  }
  const LocalSwitch local;
  std::atomic<bool> first_has_started{false};
  run_ranks(2, {.address = local.address(), .wrap = near_cores({cores[1]})}, [&](int rank, Comm& comm) {
    std::atomic<int> seen{-1};
    if (!place_thread({&cores[0], 1})) return std::string("the test's thread cannot be placed");
    gatun_call_t call = GATUN_CALL_INIT;
    call.done = [](void* context, int, const char*) { *static_cast<std::atomic<int>*>(context) = ::sched_getcpu(); };
    call.context = &seen;
    // So that it is not the caller's thread that completes rank 0's.
    while (rank == 1 && !first_has_started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Exercise exercise({.count = 100}, rank, 2);
    gatun_request_t request = nullptr;
    if (const int code = exercise.start(comm, &call, &request)) return expect_code(0, code, comm, "start");
    first_has_started = true;
    while (seen < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (::sched_getcpu() != cores[0]) return std::string("the caller's thread was moved");
    if (rank == 0 && seen != cores[1]) return "completed on core " + std::to_string(seen);
    return expect_code(0, gatun_wait(&request, -1), comm, "wait");
  });
}

TEST_CASE("one_rank__is_identity_without_a_switch", "[lib][system]") {
  Comm comm(1, 0, {.address = "127.0.0.1:1"});
  REQUIRE(comm.code() == 0);
  CHECK(comm.stats().transport == std::string("self"));
  for (int collective = 0; collective < kCollectives; ++collective) {
    for (int op = 0; op < kOps; ++op) {
      Exercise exercise({.collective = static_cast<Collective>(collective), .op = static_cast<Op>(op), .count = 1000}, 0, 1);
      CHECK(exercise.run(comm) == 0);
      CHECK(exercise.verify() == "");
    }
  }
  int called = -1;
  gatun_call_t call = GATUN_CALL_INIT;
  call.done = [](void* context, int code, const char*) { *static_cast<int*>(context) = code; };
  call.context = &called;
  Exercise exercise({.count = 5}, 0, 1);
  gatun_request_t request = nullptr;
  CHECK(exercise.start(comm, &call, &request) == 0);
  CHECK(called == 0);
  CHECK(gatun_wait(&request, -1) == 0);
  CHECK(request == nullptr);
  CHECK(exercise.verify() == "");
  CHECK(gatun_comm_abort(comm) == 0);
  CHECK(gatun_barrier(comm) == GATUN_ABORTED);
}

TEST_CASE("join__no_daemon_says_how_to_start_one", "[lib][system]") {
  for (const int64_t join_timeout_ms : {25, 20'000}) {  // shorter than the wait for a daemon that starts, and longer
    const auto [code, text] = failed_join(2, 0, {.address = "127.0.0.1:1", .join_timeout_ms = join_timeout_ms});
    CHECK(code == GATUN_SWITCH_LOST);
    CHECK(says(text, "no gatund at 127.0.0.1:1 (connection refused)"));
    CHECK(says(text, "`gatund`"));
  }
}

TEST_CASE("join__bad_address_is_named", "[lib][system]") {
  CHECK(says(failed_join(2, 0, {.address = "127.0.0.1:99999"}).second, "99999"));
  CHECK(says(failed_join(2, 0, {.address = "no.such.host.invalid:7117"}).second, "no.such.host.invalid"));
}

// This machine's own name often stands for 127.0.1.1 in /etc/hosts.
TEST_CASE("join__host_name_that_is_loopback_is_explained", "[lib][system]") {
  const std::string host = host_name();
  const Result<std::vector<Endpoint>> found = resolve(host, 1);
  if (!found.ok() || !found.value().back().loopback()) {
    std::puts("[skipped] join__host_name_that_is_loopback_is_explained: this host's name is not a loopback address");
    return;
  }
  const auto [code, text] = failed_join(2, 0, {.address = host + ":1"});
  CHECK(code == GATUN_SWITCH_LOST);
  CHECK(says(text, "host name '" + host + "' is the loopback address"));
  CHECK(says(text, "/etc/hosts"));
}

TEST_CASE("join__missing_rank_is_named_at_the_deadline", "[lib][system]") {
  const LocalSwitch local;
  const auto [code, text] = failed_join(2, 0, {.address = local.address(), .join_timeout_ms = 200});
  CHECK(code < 0);
  CHECK(says(text, "waiting for rank 1"));
}

TEST_CASE("join__settings_that_differ_are_named", "[lib][system]") {
  const LocalSwitch local;
  std::pair<int, std::string> outcomes[2];
  std::thread first([&] { outcomes[0] = failed_join(2, 0, {.address = local.address(), .payload_bytes = 1024}); });
  outcomes[1] = failed_join(2, 1, {.address = local.address(), .payload_bytes = 2048});
  first.join();
  for (const auto& [code, text] : outcomes) {
    CHECK(code == GATUN_REFUSED);
    CHECK(says(text, "payload"));
    CHECK(says(text, "1024"));
    CHECK(says(text, "2048"));
  }
}

TEST_CASE("join__world_sizes_that_differ_are_named", "[lib][system]") {
  const LocalSwitch local;
  std::pair<int, std::string> outcomes[2];
  std::thread first([&] { outcomes[0] = failed_join(2, 0, {.address = local.address()}); });
  outcomes[1] = failed_join(3, 1, {.address = local.address()});
  first.join();
  for (const auto& [code, text] : outcomes) {
    CHECK(code == GATUN_REFUSED);
    CHECK(says(text, "2"));
    CHECK(says(text, "3"));
  }
}

// What a forked child does with its parent's communicator fails or does nothing; the parent's job goes on.
TEST_CASE("fork__a_child_cannot_end_its_parents_job", "[lib][system]") {
  const LocalSwitch local;
  run_ranks(2, {.address = local.address()}, [](int rank, Comm& comm) {
    Exercise before({.count = 3000}, rank, 2);
    int code = before.run(comm);
    Exercise pending({.count = 10}, rank, 2);
    gatun_request_t request = nullptr;
    if (code == 0 && rank == 0) code = pending.start(comm, nullptr, &request);
    if (code != 0) return expect_code(0, code, comm, "before");
    const pid_t child = ::fork();
    if (child == 0) {
      float value = 1;
      int wrong = gatun_allreduce(&value, &value, 1, GATUN_F32, GATUN_SUM, comm) == GATUN_INVALID_ARGUMENT ? 0 : 1;
      if (!std::strstr(gatun_last_error(comm), "forked")) wrong |= 2;
      if (request && gatun_wait(&request, 0) != GATUN_INVALID_ARGUMENT) wrong |= 4;
      if (gatun_comm_abort(comm) != GATUN_INVALID_ARGUMENT) wrong |= 8;
      if (gatun_comm_async_error(comm) != GATUN_INVALID_ARGUMENT) wrong |= 16;
      if (gatun_comm_destroy(comm) != GATUN_SUCCESS) wrong |= 32;
      ::_exit(wrong);
    }
    int status = -1;
    if (::waitpid(child, &status, 0) != child || status != 0) return "child: status " + std::to_string(status);
    code = request ? gatun_wait(&request, -1) : pending.run(comm);
    if (code != 0) return expect_code(0, code, comm, "after");
    return pending.verify();
  });
}

// Many groups at once over the same ranks, each used by its own thread on every rank.
TEST_CASE("communicators__fifty_in_one_process", "[lib][system]") {
  const LocalSwitch local;
  constexpr int kGroups = 50;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int group = 0; group < kGroups; ++group) {
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, group, rank] {
        const Comm comm(2, rank, {.address = local.address(), .job = "group " + std::to_string(group)});
        Exercise exercise({.count = 3000, .salt = static_cast<uint64_t>(group)}, rank, 2);
        if (comm.code() != 0 || exercise.run(comm) != 0 || !exercise.verify().empty()) ++wrong;
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

// Ranks that leave and come again under one name, each at its own pace: a rank is back before another has left.
TEST_CASE("cycles__same_name_without_waiting_for_each_other", "[lib][system]") {
  const LocalSwitch local;
  std::vector<std::string> wrong(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 30 && wrong[static_cast<size_t>(rank)].empty(); ++round) {
        Comm comm(3, rank, {.address = local.address()});
        Exercise exercise({.count = 100, .salt = static_cast<uint64_t>(round)}, rank, 3);
        std::string& mine = wrong[static_cast<size_t>(rank)];
        if (comm.code() != 0) {
          mine = "round " + std::to_string(round) + ": " + comm.error();
        } else if (const int code = exercise.run(comm)) {
          mine = expect_code(0, code, comm, "round " + std::to_string(round));
        } else {
          mine = exercise.verify();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) CHECK(text == "");
}

TEST_CASE("cycles__leak_no_descriptor_thread_or_tree", "[lib][system]") {
  const LocalSwitch local;
  for (const char* transport : {"shm", "udp"}) {
    const auto cycle = [&](int number) {
      run_ranks(2, {.address = local.address(), .job = std::to_string(number), .transport = transport, .trees = 2},
                [](int rank, Comm& comm) {
                  Exercise blocking({.count = 2000}, rank, 2), started({.count = 2000}, rank, 2);
                  gatun_request_t request = nullptr;
                  int code = blocking.run(comm);
                  if (code == 0) code = started.start(comm, nullptr, &request);
                  if (code == 0) code = gatun_wait(&request, -1);
                  return code == 0 ? started.verify() : expect_code(0, code, comm, "cycle");
                });
    };
    const auto settle = [&] {
      for (int i = 0; i < 1000 && (local.jobs() > 0 || local.connections() > 0); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    cycle(0);
    settle();
    const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 1; i <= 50; ++i) cycle(i);
    settle();
    CHECK(local.jobs() == 0);
    CHECK(local.trees() == 0);
    CHECK(entries("/proc/self/fd") <= descriptors);
    CHECK(entries("/proc/self/task") == threads);
  }
}
