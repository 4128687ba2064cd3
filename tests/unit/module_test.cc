#include "host/base/module.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <string>

namespace gatun {
namespace {

constexpr ModuleFile kAbsent = {
    .file = "libgatun_absent.so", .entry = "gatun_absent", .what = "the absent part", .needs = "Absence (libabsent-dev)"};

std::string folder_of_this_program() {
  char path[4096] = "";
  std::FILE* maps = std::fopen("/proc/self/cmdline", "r");
  REQUIRE(maps != nullptr);
  const size_t bytes = std::fread(path, 1, sizeof path - 1, maps);
  std::fclose(maps);
  REQUIRE(bytes > 0);
  const std::string text = path;
  return text.substr(0, text.rfind('/'));
}

TEST_CASE("load_module__a_file_that_is_not_there", "[base]") {
  const Result<const void*> loaded = load_module(kAbsent);
  REQUIRE_FALSE(loaded.ok());
  REQUIRE(loaded.status().code() == Code::kUnsupported);
  REQUIRE_THAT(loaded.status().message(), Catch::Contains("libgatun_absent.so") && Catch::Contains("libabsent-dev"));
}

TEST_CASE("load_module__a_file_that_is_no_module", "[base]") {
  const std::string path = folder_of_this_program() + "/libgatun_absent.so";
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fputs("text\n", file);
  std::fclose(file);
  const Result<const void*> loaded = load_module(kAbsent);
  std::remove(path.c_str());
  REQUIRE_FALSE(loaded.ok());
  REQUIRE(loaded.status().code() == Code::kUnsupported);
  REQUIRE_THAT(loaded.status().message(), Catch::Contains("cannot load the absent part"));
}

}  // namespace
}  // namespace gatun
