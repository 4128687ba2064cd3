// Flags of `gatun perf`.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "host/tools/perf/options.h"

namespace gatun::perf {
namespace {

int parse(const std::vector<std::string>& arguments, Options* options) {
  return parse_options(arguments, options);
}

}  // namespace

TEST_CASE("parse_options__nccl_tests_flags", "[perf][options]") {
  Options o;
  REQUIRE(parse({"-b", "8",   "-e", "128M", "-f", "2", "-g", "4", "-n", "7", "-w", "1", "-c", "3",
                 "-o", "max", "-d", "half", "-a", "3", "-m", "2", "-z", "1", "-u", "1", "-R", "1"},
                &o) == -1);
  CHECK(o.bytes_min == 8);
  CHECK(o.bytes_max == 128u << 20);
  CHECK(o.step_factor == 2);
  CHECK(o.local_ranks == 4);
  CHECK(o.iters == 7);
  CHECK(o.warmup_iters == 1);
  CHECK(o.check_iters == 3);
  CHECK(o.ops == std::vector<gatun_op_t>{GATUN_MAX});
  CHECK(o.types == std::vector<gatun_type_t>{GATUN_F16});
  CHECK(o.average == Average::kMost);
  CHECK(o.aggregate == 2);
  CHECK(o.blocking);
  CHECK(o.unalign == 1);
  CHECK(o.registered);
}

TEST_CASE("parse_options__long_names_and_all", "[perf][options]") {
  Options o;
  REQUIRE(parse({"--minbytes", "1K", "--maxbytes=4K", "--stepbytes", "1K", "--ngpus", "2", "--nthreads", "3", "--datatype",
                 "all", "--op", "all", "--root", "all", "--collective", "reduce", "--vs", ""},
                &o) == 2);
  REQUIRE(parse({"--minbytes", "1K", "--maxbytes=4K", "--stepbytes", "1K", "--ngpus", "2", "--nthreads", "3", "--datatype",
                 "all", "--op", "all", "--root", "all", "--collective", "reduce"},
                &o) == -1);
  CHECK(o.local_ranks == 6);
  CHECK(o.types.size() == 12);
  CHECK(o.ops.size() == 5);
  CHECK(o.root == -1);
  CHECK(sizes(o) == std::vector<uint64_t>{1024, 2048, 3072, 4096});
}

TEST_CASE("parse_options__peers", "[perf][options]") {
  Options o;
  REQUIRE(parse({"--vs", "gloo,mpi-tcp", "--vs", "gloo"}, &o) == -1);
  CHECK(o.peers == std::vector<std::string>{"gloo", "mpi-tcp"});
  Options two_mpi;
  CHECK(parse({"--vs", "mpi,mpi-tcp"}, &two_mpi) == 2);
  Options other;
  CHECK(parse({"--vs", "gloo", "--collective", "broadcast"}, &other) == 2);
}

TEST_CASE("parse_options__settings_go_to_the_environment", "[perf][options]") {
  Options o;
  REQUIRE(parse({"--trees", "3", "--timeout", "7", "-g", "2"}, &o) == -1);
  CHECK(std::string(getenv("GATUN_TREES")) == "3");
  CHECK(std::string(getenv("GATUN_TIMEOUT")) == "7s");  // as nccl-tests gives it, in seconds
  CHECK(o.address.empty());
  unsetenv("GATUN_TREES");
  unsetenv("GATUN_TIMEOUT");
  Options named;
  REQUIRE(parse({"--address", "h:1"}, &named) == -1);
  CHECK(named.address == "h:1");
  unsetenv("GATUN_ADDRESS");
}

TEST_CASE("parse_options__refuses_bad_values", "[perf][options]") {
  const std::vector<std::vector<std::string>> bad = {{"--bogus"},
                                                     {"-b", "3X"},
                                                     {"-b", "2M", "-e", "1M"},
                                                     {"-d", "int7"},
                                                     {"-o", "xor"},
                                                     {"-r", "-1"},
                                                     {"-r", "x"},
                                                     {"-n", "0"},
                                                     {"-G", "1"},
                                                     {"-R", "2"},
                                                     {"-g", "0"},
                                                     {"-g", "65"},
                                                     {"-g", "33", "-t", "2"},
                                                     {"--transport", "tcp"},
                                                     {"--vs", "nccl"},
                                                     {"-i", "0"},
                                                     {"stray"}};
  for (const auto& arguments : bad) {
    Options o;
    CAPTURE(arguments[0]);
    CHECK(parse(arguments, &o) == 2);
  }
}

TEST_CASE("sizes__factor_and_limit", "[perf][options]") {
  Options o;
  o.bytes_min = 3;
  o.bytes_max = 100;
  o.step_factor = 4;
  CHECK(sizes(o) == std::vector<uint64_t>{3, 12, 48});
  o.bytes_min = 0;
  CHECK(sizes(o) == std::vector<uint64_t>{0, 1, 4, 16, 64});
  o.collective = Collective::kBarrier;
  CHECK(sizes(o) == std::vector<uint64_t>{0});
}

TEST_CASE("parse_size__units", "[perf][options]") {
  uint64_t bytes = 0;
  REQUIRE(parse_size("1.5K", &bytes));
  CHECK(bytes == 1536);
  REQUIRE(parse_size("2g", &bytes));
  CHECK(bytes == 2ull << 30);
  for (const char* text : {"", "K", "1T", "-1", "1Kx", "nan", "1e20"}) CHECK_FALSE(parse_size(text, &bytes));
  CHECK(format_size(65536) == "64K");
  CHECK(format_size(1000) == "1000");
  CHECK(format_size(3u << 20) == "3M");
}

}  // namespace gatun::perf
