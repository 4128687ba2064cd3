// What a rank that joins tells its user while it waits for the others.
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "host/base/os.h"
#include "tests/system/gatund_process.h"
#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

// Keeps what this process writes on stderr.
class Stderr {
 public:
  Stderr() : before_(::dup(2)), kept_(::memfd_create("stderr", MFD_CLOEXEC)) { ::dup2(*kept_, 2); }
  ~Stderr() { ::dup2(*before_, 2); }
  Stderr(const Stderr&) = delete;

  std::string text() const {
    std::string text(1 << 16, '\0');
    const ssize_t got = ::pread(*kept_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }
  bool says(const std::string& part, TimeNs within) const {
    for (const TimeNs end = now_ns() + within; now_ns() < end;) {
      if (text().find(part) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  const Fd before_, kept_;
};

}  // namespace

// A rank that is not there yet is named in a warning, by the switch or, without one, at the rendezvous; nothing is lost.
TEST_CASE("join__a_slow_rank_is_named_in_a_warning", "[lib][system]") {
  const bool with_switch = GENERATE(true, false);
  CAPTURE(with_switch);
  const LocalSwitch local;
  const std::string rendezvous = "127.0.0.1:" + std::to_string(free_port());
  const RankOptions options{.address = with_switch ? local.address() : "127.0.0.1:1",
                            .join_timeout_ms = 60'000,
                            .fallback = "ring",
                            .rendezvous = rendezvous};
  const std::string warning = with_switch ? "warning: the switch at " + local.address() + " waits for rank 1 of 2"
                                          : "warning: waiting at the rendezvous " + rendezvous + ": ";
  ::setenv("GATUN_STALL_WARNING", "200ms", 1);
  std::string wrong[2];
  const auto live = [&](int rank) {
    Comm comm(2, rank, options);
    Exercise exercise({.count = 1000}, rank, 2);
    if (comm.code() != 0) wrong[rank] = comm.error();
    if (comm.code() == 0) wrong[rank] = exercise.run(comm) == 0 ? exercise.verify() : comm.last_error();
  };
  bool warned = false;
  std::string text;
  {
    const Stderr kept;
    std::jthread first(live, 0);
    warned = kept.says(warning, 20 * kSecond);
    const std::jthread second(live, 1);
    text = kept.text();
  }
  ::unsetenv("GATUN_STALL_WARNING");
  INFO(text);
  CHECK(warned);
  CHECK(text.substr(std::min(text.find(warning), text.size())).find("rank 1") != std::string::npos);
  for (const std::string& each : wrong) CHECK(each == "");
}

// A full switch is none, until there is room.
TEST_CASE("join__a_full_daemon_is_no_daemon", "[lib][system]") {
  GatundProcess gatund;
  gatund.end();
  gatund.start({"--jobs", "1"});
  const RankOptions first_options{.address = gatund.address(), .job = "first"};
  std::optional<Comm> first[2];
  {
    std::jthread other([&] { first[1].emplace(2, 1, first_options); });
    first[0].emplace(2, 0, first_options);
  }
  REQUIRE((first[0]->code() == 0 && first[1]->code() == 0));
  run_ranks(3, {.address = gatund.address(), .fallback = "ring"}, [&](int rank, Comm& comm) {
    const std::string why = comm.stats().why;
    if (why.find("its maximum of 1 jobs; raise its setting jobs") == std::string::npos) return "why: " + why;
    for (uint64_t round = 0;; ++round) {
      Exercise exercise({.count = 10'000, .salt = round}, rank, 3);
      if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "run");
      if (std::string wrong = exercise.verify(); !wrong.empty()) return wrong;
      if (rank == 0 && round == 3) {
        for (auto& one : first) one.reset();
      }
      int32_t over = comm.stats().why[0] == 0 ? 1 : 0;  // rank 0's word
      if (const int code = gatun_broadcast(&over, &over, 1, GATUN_I32, 0, comm)) return expect_code(0, code, comm, "word");
      if (over) return std::string();
    }
  });
}
