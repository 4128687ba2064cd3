// Integers in network order, at any alignment: how headers, control frames and small payloads carry them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gatun {

template <typename T>
T take_big_endian(const std::byte* at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(uint64_t{value} << 8 | std::to_integer<uint64_t>(at[i]));
  return value;
}
inline uint16_t take16(const std::byte* at) { return take_big_endian<uint16_t>(at); }
inline uint32_t take32(const std::byte* at) { return take_big_endian<uint32_t>(at); }
inline uint64_t take64(const std::byte* at) { return take_big_endian<uint64_t>(at); }

template <typename T>
void put_big_endian(std::byte* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = std::byte(value >> (8 * (sizeof(T) - 1 - i)) & 0xff);
}
inline void put16(std::byte* at, uint16_t value) { put_big_endian(at, value); }
inline void put32(std::byte* at, uint32_t value) { put_big_endian(at, value); }
inline void put64(std::byte* at, uint64_t value) { put_big_endian(at, value); }

}  // namespace gatun
