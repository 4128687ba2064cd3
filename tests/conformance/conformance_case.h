// CONFORMANCE_CASE(function__case) { ... kind ... }: one body, one test per kind of transport.
#pragma once

#include <catch2/catch.hpp>
#include <iostream>
#include <string>

#include "tests/conformance/harness.h"

namespace gatun::conformance {

inline void run_case(const char* name, const std::string& kind, void (*body)(const std::string&)) {
  const std::string missing = missing_for(kind);
  if (!missing.empty()) {
    std::cout << "[skipped] " << kind << "." << name << ": " << missing << "\n";
    return;
  }
  body(kind);
}

}  // namespace gatun::conformance

#define CONFORMANCE_CASE(name)                                                                      \
  static void name(const std::string& kind);                                                        \
  TEST_CASE("udp4." #name, "[conformance]") { gatun::conformance::run_case(#name, "udp4", name); }  \
  TEST_CASE("udp6." #name, "[conformance]") { gatun::conformance::run_case(#name, "udp6", name); }  \
  TEST_CASE("shm." #name, "[conformance]") { gatun::conformance::run_case(#name, "shm", name); }    \
  TEST_CASE("verbs." #name, "[conformance]") { gatun::conformance::run_case(#name, "verbs", name); } \
  TEST_CASE("lossy." #name, "[conformance]") { gatun::conformance::run_case(#name, "lossy", name); } \
  static void name([[maybe_unused]] const std::string& kind)
