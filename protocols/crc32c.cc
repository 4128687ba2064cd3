#include <array>
#include <cstring>

#include "protocols/wire.h"

// CRC-32C (polynomial 0x1EDC6F41, reflected; RFC 3720 section 12.1).
//
// Registers below hold the CRC without its initial and final inversion; as a polynomial over GF(2) appending n bytes of
// zeros multiplies it by x^(8n). The fast path runs three streams at once, because the crc32 instruction takes three cycles
// and starts every cycle, and then shifts the first two over what follows them with one carry-less multiplication each.

namespace gatun {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits reversed

constexpr uint32_t times_x(uint32_t value) {
  return (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
}

using SliceTables = std::array<std::array<uint32_t, 256>, 8>;

// table[k][b]: what byte b contributes when k more bytes follow it.
constexpr SliceTables make_slices() {
  SliceTables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][b] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 255];
  }
  return tables;
}

constexpr SliceTables kSlices = make_slices();

uint32_t update_portable(uint32_t state, const unsigned char* p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    uint32_t low = state ^ (static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
                            static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24);
    state = kSlices[7][low & 255] ^ kSlices[6][(low >> 8) & 255] ^ kSlices[5][(low >> 16) & 255] ^ kSlices[4][low >> 24] ^
            kSlices[3][p[4]] ^ kSlices[2][p[5]] ^ kSlices[1][p[6]] ^ kSlices[0][p[7]];
  }
  for (; size > 0; ++p, --size) state = (state >> 8) ^ kSlices[0][(state ^ *p) & 255];
  return state;
}

#if defined(__x86_64__)

// A stream has at most this many words of 8 bytes: 12 KiB a round, so that a jumbo packet is one round and the table below
// stays at 4 KiB.
constexpr size_t kStreamWordsMax = 512;
// Under this many bytes one stream is as fast as three and their combination.
constexpr size_t kThreeStreamsMin = 192;

// kShifts[w] = x^(64 w - 33): multiplying by it without carry, then one crc32 step over the 64-bit product (which multiplies
// by x^33), moves a register over w words.
constexpr std::array<uint32_t, 2 * kStreamWordsMax + 1> make_shifts() {
  std::array<uint32_t, 2 * kStreamWordsMax + 1> shifts{};
  uint32_t value = 0x80000000u;  // x^0
  for (int bit = 0; bit < 64 - 33; ++bit) value = times_x(value);
  for (size_t w = 1; w < shifts.size(); ++w) {
    shifts[w] = value;
    for (int bit = 0; bit < 64; ++bit) value = times_x(value);
  }
  return shifts;
}

constexpr auto kShifts = make_shifts();

uint64_t load64(const unsigned char* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

using Words = long long __attribute__((vector_size(16)));

__attribute__((target("sse4.2,pclmul"))) uint64_t multiply(uint64_t state, uint32_t shift) {
  Words product =
      __builtin_ia32_pclmulqdq128(Words{static_cast<long long>(state), 0}, Words{static_cast<long long>(shift), 0}, 0);
  return static_cast<uint64_t>(product[0]);
}

__attribute__((target("sse4.2,pclmul"))) uint32_t update_sse42(uint32_t state, const unsigned char* p, size_t size) {
  uint64_t first = state;
  while (size >= kThreeStreamsMin) {
    const size_t words = size / 24 < kStreamWordsMax ? size / 24 : kStreamWordsMax;
    const unsigned char *second_at = p + 8 * words, *third_at = p + 16 * words;
    uint64_t second = 0, third = 0;
    for (size_t w = 0; w < words; ++w) {
      first = __builtin_ia32_crc32di(first, load64(p + 8 * w));
      second = __builtin_ia32_crc32di(second, load64(second_at + 8 * w));
      third = __builtin_ia32_crc32di(third, load64(third_at + 8 * w));
    }
    uint64_t products = multiply(first, kShifts[2 * words]) ^ multiply(second, kShifts[words]);
    first = third ^ __builtin_ia32_crc32di(0, products);
    p += 24 * words;
    size -= 24 * words;
  }
  for (; size >= 8; p += 8, size -= 8) first = __builtin_ia32_crc32di(first, load64(p));
  state = static_cast<uint32_t>(first);
  for (; size > 0; ++p, --size) state = __builtin_ia32_crc32qi(state, *p);
  return state;
}

bool have_crc_instructions() {
  static const bool have = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  return have;
}

#endif

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const void* bytes, size_t size) {
  return ~update_portable(~crc, static_cast<const unsigned char*>(bytes), size);
}

uint32_t crc32c(uint32_t crc, const void* bytes, size_t size) {
#if defined(__x86_64__)
  if (have_crc_instructions()) return ~update_sse42(~crc, static_cast<const unsigned char*>(bytes), size);
#endif
  return crc32c_portable(crc, bytes, size);
}

}  // namespace gatun
