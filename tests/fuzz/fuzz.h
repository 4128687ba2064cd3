// A fuzz target: a function that takes any bytes, must return and may not break an invariant, and inputs to begin from.
//
// Each target is one file that defines both functions below. With preset fuzz it becomes a libFuzzer program; in every other
// build replay.cc drives it over its committed corpus and a fixed number of mutations, as a test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace gatun::fuzz {

using Bytes = std::vector<uint8_t>;

// Name and bytes of the inputs in corpus/<target>/; `replay --write-seeds DIR` writes them.
std::vector<std::pair<std::string, Bytes>> seeds();

// Takes values off the front of an input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  uint8_t u8() { return at_ == end_ ? 0 : *at_++; }
  uint16_t u16() { return static_cast<uint16_t>(u8() | u8() << 8); }
  uint32_t u32() { return u16() | uint32_t{u16()} << 16; }
  uint32_t below(uint32_t limit) { return u8() % limit; }
  bool bit() { return u8() & 1; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace gatun::fuzz
