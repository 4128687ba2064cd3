#include "host/lib/registrations.h"

#include <algorithm>
#include <string>

namespace gatun {
namespace {

auto begins_at(const void* address) {
  return [address](const auto& entry) { return entry.memory.data() == address; };
}

}  // namespace

Status Registrations::add(std::span<std::byte> memory, bool* first) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), begins_at(memory.data()));
  *first = found == entries_.end();
  if (*first) {
    entries_.push_back({memory, 1});
  } else if (found->memory.size() != memory.size()) {
    return {Code::kInvalidArgument, std::to_string(found->memory.size()) +
                                        " bytes are registered at this address, and these are " +
                                        std::to_string(memory.size()) + "; deregister those first"};
  } else {
    ++found->times;
  }
  return {};
}

std::span<std::byte> Registrations::find(const void* address, bool* last) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), begins_at(address));
  if (found == entries_.end()) return {};
  *last = found->times == 1;
  return found->memory;
}

Status Registrations::remove(const void* address) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), begins_at(address));
  if (found == entries_.end()) return {Code::kInvalidArgument, "no memory that begins at this address is registered"};
  if (--found->times == 0) entries_.erase(found);
  return {};
}

}  // namespace gatun
