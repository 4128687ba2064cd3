// Registrations: the memory that a communicator's owner has registered, counted by range. Who owns it guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocols/status.h"

namespace gatun {

class Registrations {
 public:
  // *first: the range was not there. Refused: another range begins at the same address, by which they are told apart.
  Status add(std::span<std::byte> memory, bool* first);
  // The range that begins there; empty: none does. *last: it is registered once.
  std::span<std::byte> find(const void* address, bool* last) const;
  // Refused: none begins there.
  Status remove(const void* address);

  template <typename F>
  void for_each(F f) const {
    for (const Entry& entry : entries_) f(entry.memory);
  }

 private:
  struct Entry {
    std::span<std::byte> memory;
    uint32_t times = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace gatun
