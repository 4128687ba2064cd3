// Fields: how the messages on TCP are made of bytes: big-endian integers, texts as a u16 length and bytes, contracts.
//
// The reader never reads outside its input; texts come out with control characters replaced, so they can be logged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/contract.h"

namespace gatun {

inline constexpr size_t kFieldTextBytesMax = 4096;  // longer texts are cut, and refused by the reader

class FieldWriter {
 public:
  explicit FieldWriter(std::vector<std::byte>* out) : out_(out) {}

  void u8(uint8_t value) { out_->push_back(std::byte(value)); }
  void u16(uint16_t value) { big_endian(value, 2); }
  void u32(uint32_t value) { big_endian(value, 4); }
  void u64(uint64_t value) { big_endian(value, 8); }
  void text(std::string_view value, size_t bytes_max = kFieldTextBytesMax) {
    value = value.substr(0, bytes_max);
    u16(static_cast<uint16_t>(value.size()));
    for (char c : value) u8(static_cast<uint8_t>(c));
  }
  void contract(const Contract& value) {
    u8(static_cast<uint8_t>(value.collective));
    u8(static_cast<uint8_t>(value.type));
    u8(static_cast<uint8_t>(value.op));
    u32(value.root);
    u64(value.count);
    u64(value.tag);
  }

 private:
  void big_endian(uint64_t value, int bytes) {
    while (bytes-- > 0) u8(static_cast<uint8_t>(value >> (8 * bytes)));
  }

  std::vector<std::byte>* out_;
};

// Reads fields from exactly the bytes of one message. After the first that does not fit, ok() is false and all reads give 0.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> in) : in_(in) {}

  uint8_t u8() { return static_cast<uint8_t>(big_endian(1)); }
  uint16_t u16() { return static_cast<uint16_t>(big_endian(2)); }
  uint32_t u32() { return static_cast<uint32_t>(big_endian(4)); }
  uint64_t u64() { return big_endian(8); }
  std::string text(size_t bytes_max = kFieldTextBytesMax) {
    size_t size = u16();
    if (size > bytes_max || size > in_.size()) ok_ = false;
    if (!ok_) return {};
    std::string value(reinterpret_cast<const char*>(in_.data()), size);
    in_ = in_.subspan(size);
    for (char& c : value) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return value;
  }
  uint8_t u8_below(unsigned limit) {
    uint8_t value = u8();
    if (value >= limit) ok_ = false;
    return ok_ ? value : 0;
  }
  Contract contract() {
    Contract value;
    value.collective = static_cast<Collective>(u8_below(kCollectives));
    value.type = static_cast<Type>(u8_below(kTypes));
    value.op = static_cast<Op>(u8_below(kOps));
    value.root = u32();
    value.count = u64();
    value.tag = u64();
    return value;
  }
  size_t count(size_t max) {
    size_t value = u16();
    if (value > max) ok_ = false;
    return ok_ ? value : 0;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  uint64_t big_endian(size_t bytes) {
    if (bytes > in_.size()) ok_ = false;
    if (!ok_) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<uint64_t>(in_[i]);
    in_ = in_.subspan(bytes);
    return value;
  }

  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace gatun
