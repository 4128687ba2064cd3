#include <catch2/catch.hpp>

#include "host/lib/sentences.h"

using namespace gatun;

namespace {

void fill(Request* request) {
  request->contract = {.collective = Collective::kAllReduce, .type = Type::kF32, .op = Op::kSum, .count = 1048576};
  request->ordinal = 17;
  request->submitted = true;
  request->timeout = 30 * kSecond;
  request->started_at = 100 * kSecond;
}

}  // namespace

TEST_CASE("rank_list__names_few_and_counts_many", "[lib][sentences]") {
  CHECK(rank_list(1) == "rank 0");
  CHECK(rank_list(0b1010) == "ranks 1 and 3");
  CHECK(rank_list(0b101010) == "ranks 1, 3 and 5");
  CHECK(rank_list(uint64_t{1} << 63) == "rank 63");
  CHECK(rank_list(0xfff) == "12 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...)");
}

TEST_CASE("timeout_sentence__names_who_and_where", "[lib][sentences]") {
  Request request;
  fill(&request);
  const Datapath::Stall stall{.found = true, .tree = 0, .index = 1234, .missing = 0b100, .heard_at = 1};
  CHECK(
      timeout_sentence(request, stall, "127.0.0.1:7117", "", 130 * kSecond) ==
      "allreduce of 1048576 f32, sum (operation 17) timed out after 30s: rank 2 has not contributed to chunk 1234 of tree 0 "
      "(switch 127.0.0.1:7117)");
  CHECK(timeout_sentence(request, stall, "s", "rank 2 is on holiday", 0).ends_with("(switch s); rank 2 is on holiday"));
}

TEST_CASE("timeout_sentence__tells_silence_from_lateness", "[lib][sentences]") {
  Request request;
  fill(&request);
  const TimeNs now = 130 * kSecond;
  CHECK(timeout_sentence(request, {.found = true, .index = 3}, "s", "", now).find("has never answered on tree 0") !=
        std::string::npos);
  CHECK(timeout_sentence(request, {.found = true, .index = 3, .heard_at = now - 1234 * kMs}, "s", "", now)
            .find("chunk 3 of tree 0 has no answer; the switch was last heard 1200ms ago") != std::string::npos);
  CHECK(timeout_sentence(request, {}, "s", "", now).find("no chunk of it is in flight") != std::string::npos);
  request.submitted = false;
  CHECK(timeout_sentence(request, {}, "s", "", now) ==
        "allreduce of 1048576 f32, sum timed out after 30s: it is queued behind earlier operations");
}

TEST_CASE("ring_asked_sentence__says_whose_time_is_over", "[lib][sentences]") {
  Request request;
  fill(&request);
  CHECK(ring_asked_sentence(&request, "rank 2 (host b, pid 77)") ==
        "allreduce of 1048576 f32, sum (operation 17) cannot end: the time of an operation is over at rank 2 (host b, pid "
        "77)");
  CHECK(ring_asked_sentence(nullptr, "rank 2") == "the time of an operation is over at rank 2");
}

TEST_CASE("stall_sentence__says_how_long", "[lib][sentences]") {
  Request request;
  fill(&request);
  CHECK(stall_sentence(request, {.found = true, .index = 1, .missing = 0b11}, "s", 105 * kSecond) ==
        "allreduce of 1048576 f32, sum (operation 17) has waited for 5s: ranks 0 and 1 have not contributed to chunk 1 of "
        "tree 0 "
        "(switch s)");
}
