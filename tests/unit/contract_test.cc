#include "protocols/contract.h"

#include <catch2/catch.hpp>
#include <set>

using namespace gatun;

TEST_CASE("fingerprint__every_field_matters", "[contract]") {
  const Contract base{
      .collective = Collective::kAllReduce, .type = Type::kF32, .op = Op::kSum, .root = 0, .count = 100, .tag = 0};
  std::set<uint32_t> seen = {fingerprint(base, 7)};
  Contract c = base;
  c.collective = Collective::kReduce;
  seen.insert(fingerprint(c, 7));
  c = base;
  c.type = Type::kI32;
  seen.insert(fingerprint(c, 7));
  c = base;
  c.op = Op::kMax;
  seen.insert(fingerprint(c, 7));
  c = base;
  c.root = 1;
  seen.insert(fingerprint(c, 7));
  c = base;
  c.count = 101;
  seen.insert(fingerprint(c, 7));
  c.count = 100 + (uint64_t{1} << 32);
  seen.insert(fingerprint(c, 7));
  c = base;
  c.tag = 1;
  seen.insert(fingerprint(c, 7));
  seen.insert(fingerprint(base, 8));
  CHECK(seen.size() == 9);
  CHECK(fingerprint(base, 7) == fingerprint(base, 7));
}

TEST_CASE("fingerprint__neighbours_do_not_collide", "[contract]") {
  std::set<uint32_t> seen;
  for (uint64_t count = 0; count < 20000; ++count) seen.insert(fingerprint({.count = count}, 1));
  CHECK(seen.size() >= 19999);  // 20000 draws of 32 bits: 0.05 collisions expected
}

TEST_CASE("describe__names_what_differs", "[contract]") {
  CHECK(describe({.count = 409600}) == "allreduce of 409600 f32, sum");
  CHECK(describe({.collective = Collective::kBroadcast, .type = Type::kBF16, .root = 3, .count = 5}) ==
        "broadcast of 5 bf16, root 3");
  CHECK(describe({.collective = Collective::kReduce, .type = Type::kI8, .op = Op::kMin, .root = 1, .count = 9, .tag = 77}) ==
        "reduce of 9 i8, min, root 1, tag 77");
  CHECK(describe({.collective = Collective::kBarrier}) == "barrier");
}
