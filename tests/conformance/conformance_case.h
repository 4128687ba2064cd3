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

#define CONFORMANCE_KIND(kind, name)                  \
  TEST_CASE(#kind "." #name, "[conformance]") {       \
    gatun::conformance::run_case(#name, #kind, name); \
  }

#define CONFORMANCE_CASE(name)               \
  static void name(const std::string& kind); \
  CONFORMANCE_KIND(udp4, name)               \
  CONFORMANCE_KIND(udp6, name)               \
  CONFORMANCE_KIND(shm, name)                \
  CONFORMANCE_KIND(verbs, name)              \
  CONFORMANCE_KIND(lossy, name)              \
  CONFORMANCE_KIND(dpdk4, name)              \
  CONFORMANCE_KIND(dpdk6, name)              \
  CONFORMANCE_KIND(dpdk_hub, name)           \
  CONFORMANCE_KIND(dpdk_link, name)          \
  CONFORMANCE_KIND(vhost, name)              \
  CONFORMANCE_KIND(vhost6, name)             \
  CONFORMANCE_KIND(virtio, name)             \
  CONFORMANCE_KIND(memif, name)              \
  static void name([[maybe_unused]] const std::string& kind)
