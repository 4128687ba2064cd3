// What a rank and the rendezvous say to each other. A frame is u32 bytes (of what follows, big-endian), u8 type, fields (as
// on the control channel); key and value are texts.
//
//   HELLO   rank to server: text "gatun rendezvous", u8 version, u32 rank, u32 ranks, text job     WELCOME, or REFUSED text
//   SET     text key, text value                                                                  WELCOME
//   GET     text key, u32 milliseconds to wait                                                    VALUE text, or ABSENT
//   BYE     nothing: the rank needs no more, or gives up; a connection that ends without it is a rank that died
//
// A rank has one question open at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "protocols/big_endian.h"
#include "protocols/fields.h"

namespace gatun::rendezvous_wire {

inline constexpr std::string_view kMagic = "gatun rendezvous";
inline constexpr uint8_t kVersion = 2;
inline constexpr size_t kLengthBytes = 4;
inline constexpr size_t kValueBytesMax = 60'000;
inline constexpr size_t kFrameBytesMax = kValueBytesMax + kFieldTextBytesMax + 16;
enum Type : uint8_t { kHello = 1, kSet, kGet, kWelcome, kRefused, kValue, kAbsent, kBye };

// fields(FieldWriter&) writes what follows the type.
template <typename F>
std::vector<std::byte> frame(Type type, F&& fields) {
  std::vector<std::byte> bytes;
  FieldWriter writer(&bytes);
  writer.u32(0);
  writer.u8(type);
  fields(writer);
  put32(bytes.data(), static_cast<uint32_t>(bytes.size() - kLengthBytes));
  return bytes;
}

inline std::vector<std::byte> frame(Type type) {
  return frame(type, [](FieldWriter&) {});
}

}  // namespace gatun::rendezvous_wire
