// Cuts: ranks that do not hear each other while both hear the rest, and data paths that let nothing through.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "protocols/wire.h"
#include "tests/system/cut.h"
#include "tests/system/gatund_process.h"
#include "tests/system/lib_ranks.h"
#include "tests/system/lib_values.h"

using namespace gatun;

namespace {

constexpr size_t kConnectionsMax = 64;

// Every rank's connections, told to all through the job itself.
std::string share_connections(gatun_comm_t comm, int ranks, std::vector<Ports>* by_rank) {
  const Result<Ports> own = connections(::getpid());
  if (!own.ok()) return own.status().message();
  if (own.value().size() > kConnectionsMax) return "too many connections";
  std::array<int32_t, 2 * kConnectionsMax> told{};
  size_t at = 0;
  for (const auto& [port, peer] : own.value()) {
    told[at++] = port;
    told[at++] = peer;
  }
  std::vector<int32_t> all(told.size() * static_cast<size_t>(ranks));
  if (const int code = gatun_allgather(told.data(), all.data(), told.size(), GATUN_I32, comm)) {
    return expect_code(0, code, comm, "allgather");
  }
  by_rank->resize(static_cast<size_t>(ranks));
  for (size_t i = 0; i < all.size(); i += 2) {
    if (all[i] != 0) (*by_rank)[i / told.size()].emplace(all[i], all[i + 1]);
  }
  return "";
}

struct Cut {
  int deaf = 0, mute = 0;  // what the mute rank says does not reach the deaf one
  bool both_ways = false;
};

// Cuts two ranks off from each other in the middle of a job; the sentence with which its operations end then.
std::string cut_and_run(gatun_comm_t comm, int rank, int ranks, const Cut& cut, int* code) {
  std::vector<Ports> by_rank;
  if (std::string wrong = share_connections(comm, ranks, &by_rank); !wrong.empty()) return wrong;
  const auto off_from = [&](int other) { return cut_between(::getpid(), by_rank[static_cast<size_t>(other)]); };
  Status status;
  if (rank == cut.deaf) status = off_from(cut.mute);
  if (rank == cut.mute && cut.both_ways) status = off_from(cut.deaf);
  if (!status.ok()) return status.message();
  for (*code = 0; *code == 0;) {
    Exercise exercise({.count = 1'000'000}, rank, ranks);
    *code = exercise.run(comm);
  }
  return gatun_last_error(comm);
}

bool blames(const std::string& text, int rank) {
  const size_t named = text.find("rank " + std::to_string(rank) + " (", text.rfind(';'));
  return named != std::string::npos && text.find(" does not answer", named) != std::string::npos;
}

RankOptions without_switch(const std::string& rendezvous, const std::string& fallback) {
  return {.address = "127.0.0.1:1", .timeout_ms = 1000, .fallback = fallback, .rendezvous = rendezvous};
}

}  // namespace

// The others wait for ranks that wait themselves, and all name one of the two that is not heard. It is the same one for all
// unless the machine is so busy that a second passes between two words.
TEST_CASE("cut__ranks_that_do_not_hear_each_other_are_named_by_all", "[lib][system]") {
  const std::string fallback = GENERATE("ring", "exact");
  const Cut cut = GENERATE(Cut{1, 2, true}, Cut{3, 0, true}, Cut{2, 1, false}, Cut{0, 1, false});
  CAPTURE(fallback, cut.deaf, cut.mute, cut.both_ways);
  const std::string rendezvous = "127.0.0.1:" + std::to_string(free_port());
  run_rank_processes(4, {}, [&](int rank, Comm& with_switch) -> std::string {
    with_switch.reset();
    const Comm comm(4, rank, without_switch(rendezvous, fallback));
    if (comm.code() != 0) return comm.error();
    int code = 0;
    const std::string text = cut_and_run(comm, rank, 4, cut, &code);
    const bool named = blames(text, cut.deaf) || blames(text, cut.mute);
    return code == GATUN_TIMEOUT && named ? "" : std::to_string(code) + ": " + text;
  });
}

// Only a rank that hears everybody has waited long enough: it asks, and those that do not hear each other say so.
TEST_CASE("cut__they_say_so_when_a_third_asks", "[lib][system]") {
  const std::string rendezvous = "127.0.0.1:" + std::to_string(free_port());
  run_rank_processes(4, {}, [&](int rank, Comm& with_switch) -> std::string {
    with_switch.reset();
    RankOptions options = without_switch(rendezvous, "ring");
    if (rank != 3) options.timeout_ms = 100'000;
    const Comm comm(4, rank, options);
    if (comm.code() != 0) return comm.error();
    int code = 0;
    const std::string text = cut_and_run(comm, rank, 4, {.deaf = 0, .mute = 1, .both_ways = true}, &code);
    return code == GATUN_TIMEOUT && (blames(text, 0) || blames(text, 1)) ? "" : std::to_string(code) + ": " + text;
  });
}

// Of two ranks each can only name the other.
TEST_CASE("cut__two_ranks_name_each_other", "[lib][system]") {
  const std::string rendezvous = "127.0.0.1:" + std::to_string(free_port());
  run_rank_processes(2, {}, [&](int rank, Comm& with_switch) -> std::string {
    with_switch.reset();
    const Comm comm(2, rank, without_switch(rendezvous, "ring"));
    if (comm.code() != 0) return comm.error();
    int code = 0;
    const std::string text = cut_and_run(comm, rank, 2, {.deaf = 0, .mute = 1, .both_ways = true}, &code);
    return code == GATUN_TIMEOUT && blames(text, 1 - rank) ? "" : std::to_string(code) + ": " + text;
  });
}

// A data path that lets nothing through while the control channel does, of one rank or of all: found at the join. The job
// goes on without the switch, and says why.
TEST_CASE("cut__no_answer_on_the_data_path_when_joining", "[lib][system]") {
  const bool all = GENERATE(true, false);
  CAPTURE(all);
  const auto of_rank_1 = [](const RxPacket& packet) {
    Header header;
    return decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header) == Decode::kOk &&
           header.child == 1;
  };
  const LocalSwitch local({.deaf = [&](const RxPacket& packet) { return all || of_rank_1(packet); }});
  const RankOptions options{.address = local.address(),
                            .transport = "udp",
                            .fallback = "ring",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  run_ranks(2, options, [&](int rank, Comm& comm) {
    Exercise exercise({.count = 10'000}, rank, 2);
    if (const int code = exercise.run(comm)) return expect_code(0, code, comm, "allreduce");
    const std::string why = comm.stats().why;
    const bool says =
        why.find(all || rank == 1 ? "no answer on the data path from 127.0.0.1:" : "data path") != std::string::npos;
    return says ? exercise.verify() : "why: " + why;
  });
}

// The same behind the join: the operation that meets it is completed on the ring.
TEST_CASE("cut__a_data_path_that_breaks", "[lib][system]") {
  std::atomic<bool> broken{false};
  const LocalSwitch local({.deaf = [&](const RxPacket&) { return broken.load(); }});
  const RankOptions options{.address = local.address(),
                            .transport = "udp",
                            .fallback = "exact",
                            .rendezvous = "127.0.0.1:" + std::to_string(free_port())};
  std::atomic<int> ready{0};
  run_ranks(2, options, [&](int rank, Comm& comm) {
    Exercise first({.count = 100}, rank, 2), second({.count = 100'000}, rank, 2);
    if (const int code = first.run(comm)) return expect_code(0, code, comm, "first");
    ++ready;
    while (ready < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    broken = true;
    if (const int code = second.run(comm)) return expect_code(0, code, comm, "second");
    const gatun_stats_t stats = comm.stats();
    if (stats.failovers != 1 || stats.ring_operations != 1) return std::string("the ring did not complete it");
    return second.verify();
  });
}
