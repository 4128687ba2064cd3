// No allocation on the datapath after the start: every operator new of the program is counted over thousands of operations.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/conformance/alloc_count.h"
#include "tests/system/lib_ranks.h"

using namespace gatun;

namespace {

// A switch in a child process, so that only the library's allocations are seen here.
class SwitchProcess {
 public:
  SwitchProcess() {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      const LocalSwitch local;
      const uint16_t port = local.port();
      (void)!::write(pipe[1], &port, sizeof port);
      while (true) ::pause();
    }
    uint16_t port = 0;
    REQUIRE(::read(pipe[0], &port, sizeof port) == sizeof port);
    address_ = "127.0.0.1:" + std::to_string(port);
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  ~SwitchProcess() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  const std::string& address() const { return address_; }

 private:
  pid_t child_ = -1;
  std::string address_;
};

// One round: a large blocking operation, many small ones in flight, one with a callback.
std::string round_of_calls(gatun_comm_t comm, std::vector<float>& large, std::vector<float>& small,
                           std::vector<gatun_request_t>& requests) {
  int code = gatun_allreduce(large.data(), large.data(), large.size(), GATUN_F32, GATUN_AVG, comm);
  for (size_t i = 0; i < requests.size() && code == 0; ++i) {
    code = gatun_iallreduce(&small[i], &small[i], 1, GATUN_F32, GATUN_MAX, comm, nullptr, &requests[i]);
  }
  for (gatun_request_t& request : requests) {
    if (code == 0) code = gatun_wait(&request, -1);
  }
  std::atomic<int> done{1};
  gatun_call_t call = GATUN_CALL_INIT;
  call.context = &done;
  call.done = [](void* context, int result, const char*) { static_cast<std::atomic<int>*>(context)->store(result); };
  if (code == 0) code = gatun_iallgather(small.data(), large.data(), 8, GATUN_F32, comm, &call, nullptr);
  while (code == 0 && done == 1) std::this_thread::yield();
  if (code == 0) code = done;
  return code == 0 ? "" : expect_code(0, code, comm, "round");
}

void count_allocations(const char* transport, const TransportWrapper& wrap) {
  const SwitchProcess process;
  std::atomic<int> warm{0};
  std::atomic<uint64_t> before{0}, after{0};
  const RankOptions options{.address = process.address(), .transport = transport, .trees = 2, .wrap = wrap};
  run_ranks(2, options, [&](int rank, Comm& comm) {
    std::vector<float> large(300'000, 1.0f), small(64, 2.0f);
    std::vector<gatun_request_t> requests(40, nullptr);
    std::string wrong = round_of_calls(comm, large, small, requests);
    ++warm;
    while (warm < 2) std::this_thread::yield();
    if (rank == 0) before = conformance::allocations();
    if (const int code = gatun_barrier(comm)) return expect_code(0, code, comm, "barrier");
    for (int round = 0; round < 100 && wrong.empty(); ++round) wrong = round_of_calls(comm, large, small, requests);
    if (const int code = gatun_barrier(comm)) return expect_code(0, code, comm, "barrier");
    if (rank == 0) after = conformance::allocations();
    while (after == 0) std::this_thread::yield();  // leaving allocates
    return wrong;
  });
  CHECK(after - before == 0);
}

}  // namespace

TEST_CASE("allocation__none_over_shm", "[lib][system]") {
  count_allocations("shm", {});
}
TEST_CASE("allocation__none_over_udp", "[lib][system]") {
  count_allocations("udp", {});
}
TEST_CASE("allocation__none_under_loss", "[lib][system]") {
  count_allocations("udp", lossy(3, 0.01, 0.01, 0, 0));
}
