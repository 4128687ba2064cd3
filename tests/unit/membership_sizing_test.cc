#include "protocols/membership.h"
#include "tests/unit/membership_fixture.h"

namespace gatun {
namespace {

using namespace control;
using Fixture = MembershipFixture;

}  // namespace

TEST_CASE("size_job__payload_is_the_least_of_all_paths", "[membership]") {
  SwitchFacts facts{.host_identity = "h", .udp_payload_bytes = 8944, .udp_receive_bytes = 0};
  std::vector<Join> joins = {Fixture::join(0, 2), Fixture::join(1, 2)};
  joins[0].path_payload_bytes = 8944;
  joins[1].path_payload_bytes = 1440;
  Sizing sizing = size_job(facts, joins, {false, false}).value();
  CHECK(sizing.payload_bytes == 1408);
  CHECK(sizing.window == 256);
  joins[1].path_payload_bytes = 60;
  CHECK(size_job(facts, joins, {false, false}).status().code() == Code::kRefused);
  CHECK(size_job(facts, joins, {false, true}).value().payload_bytes == 8896);
}

TEST_CASE("size_job__receive_buffers_hold_what_is_in_flight", "[membership]") {
  for (uint32_t buffer : {65536u, 212992u, 425984u, 8u << 20}) {
    for (uint32_t ranks : {1u, 2u, 4u, 16u, 64u}) {
      for (uint32_t path : {1440u, 8944u, 65472u}) {
        for (uint32_t trees : {1u, 4u}) {
          SwitchFacts facts{.udp_payload_bytes = 65472, .udp_receive_bytes = buffer, .lanes = 1};
          std::vector<Join> joins;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            joins.push_back(Fixture::join(rank, ranks));
            joins.back().trees = trees;
            joins.back().path_payload_bytes = path;
            joins.back().receive_bytes = buffer;
          }
          Sizing sizing = size_job(facts, joins, std::vector<bool>(ranks, false)).value();
          INFO(buffer << " " << ranks << " " << path << " " << trees << ": " << sizing.window << " x "
                      << sizing.payload_bytes);
          CHECK(sizing.payload_bytes % 64 == 0);
          CHECK(sizing.payload_bytes <= path);
          CHECK((sizing.window & (sizing.window - 1)) == 0);
          CHECK(sizing.window >= 2);
          if (sizing.window > 2)
            CHECK(uint64_t{sizing.window} * ranks * trees * (sizing.payload_bytes + 600) <= 2 * uint64_t{buffer});
        }
      }
    }
  }
}

TEST_CASE("size_job__held_contributions_fit_the_switchs_buffers", "[membership]") {
  SwitchFacts facts{.udp_payload_bytes = 1440, .udp_receive_bytes = 1 << 24, .udp_buffers = 1024};
  std::vector<Join> joins(64, Fixture::join(0, 64));
  for (Join& join : joins) join.receive_bytes = 1 << 24;
  CHECK(size_job(facts, joins, std::vector<bool>(64, false)).value().window == 16);
}

TEST_CASE("size_job__settings_are_limits", "[membership]") {
  SwitchFacts facts{.udp_payload_bytes = 65472, .udp_receive_bytes = 1 << 24};
  std::vector<Join> joins = {Fixture::join(0, 1)};
  joins[0].path_payload_bytes = 65472;
  joins[0].receive_bytes = 1 << 24;
  joins[0].payload_bytes = 4096;
  joins[0].window = 4;
  Sizing sizing = size_job(facts, joins, {false}).value();
  CHECK(sizing.payload_bytes == 4096);
  CHECK(sizing.window == 4);
  sizing = size_job(facts, joins, {true}).value();
  CHECK(sizing.payload_bytes == 4096);
  CHECK(sizing.window == 4);
  joins[0].payload_bytes = joins[0].window = 0;
  sizing = size_job(facts, joins, {true}).value();
  CHECK(sizing.payload_bytes == 65536);
  CHECK(sizing.window == 16);
}

}  // namespace gatun
