#include <catch2/catch.hpp>

#include "experiments/net/options.h"

using namespace gatun;
using namespace gatun::net;

namespace {

int parse_words(std::vector<std::string> words, Options* options) {
  std::vector<char*> argv = {const_cast<char*>("gatun-sim-net")};
  for (std::string& word : words) argv.push_back(word.data());
  return parse(static_cast<int>(argv.size()), argv.data(), options);
}

}  // namespace

TEST_CASE("parse__jobs_rates_and_times", "[net]") {
  Options options;
  REQUIRE(parse_words({"--job",   "vgg16:8:50", "--job",    "resnet50:4", "--compute", "0.5",         "--rate", "100",
                       "--delay", "0.5",        "--mark",   "300",        "--no-cc",   "--reduction", "ring",   "--compare",
                       "--seed",  "9",          "--window", "auto",       "--flows",   "tcp"},
                      &options) == 0);
  const Scenario& s = options.scenario;
  REQUIRE(s.jobs.size() == 2);
  CHECK(s.jobs[0].model == "vgg16");
  CHECK(s.jobs[0].ranks == 8);
  CHECK(s.jobs[0].compute == 25 * kPsPerMs);
  CHECK(s.jobs[1].compute == 146 * kPsPerMs);
  CHECK(s.shape.gbps == 100);
  CHECK(s.shape.fabric_gbps == 100);
  CHECK(s.shape.delay == kPsPerUs / 2);
  CHECK(s.limits.mark_bytes == 300'000);
  CHECK_FALSE(s.congestion_control);
  CHECK(s.reduction == Reduction::kRing);
  CHECK(s.seed == 9);
  CHECK(s.window == kWindowOfPath);
  CHECK_FALSE(s.ecn);
  CHECK(options.compare);
}

TEST_CASE("parse__without_jobs_a_mix_on_half_of_the_hosts", "[net]") {
  Options options;
  REQUIRE(parse_words({"--hosts", "128"}, &options) == 0);
  REQUIRE(options.scenario.jobs.size() == 4);
  CHECK(options.scenario.jobs[0].model == "alexnet");
  CHECK(options.scenario.jobs[3].model == "bert-large");
  Options none;
  REQUIRE(parse_words({"--mix", "0"}, &none) == 0);
  CHECK(none.scenario.jobs.empty());
}

TEST_CASE("parse__refuses_what_it_does_not_understand", "[net]") {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--job", "vgg16"},
                                                {"--job", "vgg16:0"},
                                                {"--job", "vgg16:2:x"},
                                                {"--job", "vgg16:2x"},
                                                {"--job", "lenet:2"},
                                                {"--job", "vgg16:2:-1"},
                                                {"--hosts", "1025"},
                                                {"--rate", "5"},
                                                {"--placement", "up"},
                                                {"--spines", "2", "--over-subscription", "2"},
                                                {"--frobnicate"},
                                                {"extra"}}) {
    Options options;
    CHECK(parse_words(words, &options) == 3);
  }
}
