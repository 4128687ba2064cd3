// gatun.hpp over libgatun.so as users link it: element types, requests, exceptions, moves.
#include <catch2/catch.hpp>
#include <cstdint>
#include <gatun/gatun.hpp>
#include <vector>

TEST_CASE("hpp__element_types", "[lib][system]") {
  STATIC_REQUIRE(gatun::Element<float>::type == GATUN_F32);
  STATIC_REQUIRE(gatun::Element<double>::type == GATUN_F64);
  STATIC_REQUIRE(gatun::Element<int8_t>::type == GATUN_I8);
  STATIC_REQUIRE(gatun::Element<unsigned char>::type == GATUN_U8);
  STATIC_REQUIRE(gatun::Element<int>::type == GATUN_I32);
  STATIC_REQUIRE(gatun::Element<uint32_t>::type == GATUN_U32);
  STATIC_REQUIRE(gatun::Element<long long>::type == GATUN_I64);
  STATIC_REQUIRE(gatun::Element<size_t>::type == GATUN_U64);
}

TEST_CASE("hpp__every_collective_of_one_rank", "[lib][system]") {
  gatun::Communicator communicator(1, 0);
  CHECK(communicator.rank() == 0);
  CHECK(communicator.size() == 1);
  const std::vector<int> send = {1, -2, 3};
  std::vector<int> recv(3);
  communicator.allreduce(send.data(), recv.data(), send.size(), GATUN_MIN);
  CHECK(recv == send);
  communicator.reduce_scatter(send.data(), recv.data(), send.size());
  communicator.allgather(send.data(), recv.data(), send.size());
  communicator.reduce(send.data(), recv.data(), send.size(), 0);
  communicator.broadcast(recv.data(), recv.size(), 0);
  communicator.barrier();
  CHECK(recv == send);
  CHECK(communicator.stats().operations == 6);
}

TEST_CASE("hpp__requests_are_futures", "[lib][system]") {
  gatun::Communicator first(1, 0);
  gatun::Communicator communicator = std::move(first);
  const std::vector<double> send = {1, 2};
  std::vector<double> recv(2);
  gatun::Request request = communicator.iallreduce(send.data(), recv.data(), 2);
  CHECK(request.pending());
  gatun::Request moved = std::move(request);
  CHECK_FALSE(request.pending());
  moved.wait();
  CHECK_FALSE(moved.pending());
  CHECK(moved.test());
  CHECK(recv == send);
  CHECK(communicator.iallreduce(send.data(), recv.data(), 2, GATUN_BF16, GATUN_SUM).wait_for(std::chrono::milliseconds(10)));
  communicator.ibarrier({.tag = 7, .timeout = std::chrono::milliseconds(5)}).wait();
}

TEST_CASE("hpp__memory_is_registered_as_long_as_its_owner_lives", "[lib][system]") {
  gatun::Communicator communicator(1, 0);
  std::vector<float> data(4);
  {
    gatun::Registration first = communicator.register_memory(data.data(), 16);
    gatun::Registration moved = std::move(first);
    CHECK(gatun_deregister(communicator.handle(), data.data() + 1) == GATUN_INVALID_ARGUMENT);
    CHECK_THROWS_AS(communicator.register_memory(data.data(), 8), gatun::Error);
  }
  CHECK(gatun_deregister(communicator.handle(), data.data()) == GATUN_INVALID_ARGUMENT);
}

TEST_CASE("hpp__errors_carry_code_and_sentence", "[lib][system]") {
  try {
    gatun::Communicator communicator(4, 9);
    FAIL("no exception");
  } catch (const gatun::Error& error) {
    CHECK(error.code() == GATUN_INVALID_ARGUMENT);
    CHECK(std::string(error.what()).find("rank 9 is out of range") != std::string::npos);
  }
  gatun::Communicator communicator(1, 0);
  std::vector<float> data(1);
  CHECK_THROWS_AS(communicator.broadcast(data.data(), 1, 3), gatun::Error);
  communicator.abort_job();
  CHECK(communicator.async_error() == GATUN_ABORTED);
  CHECK_THROWS_AS(communicator.barrier(), gatun::Error);
}
