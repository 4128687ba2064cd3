// Datapath and registered memory: what is sent from where it is.
#include <algorithm>
#include <cstring>

#include "host/lib/datapath.h"

namespace gatun {
namespace {

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

}  // namespace

Status Datapath::lend(std::span<std::byte> memory) {
  if (!lends_ || frozen_) return {};
  for (size_t i = 0; i < links_.size(); ++i) {
    Status status = links_[i]->lend(memory);
    if (status.ok()) continue;
    while (i-- > 0) (void)links_[i]->take_back(memory);
    return status;
  }
  lent_.push_back(memory);
  return {};
}

Status Datapath::take_back(std::span<std::byte> memory) {
  const Request* reader = nullptr;
  for_each_live([&](Request* request) {
    if (record(request->number).lent && overlap(request->operation.source(), memory)) reader = request;
  });
  if (reader) return {Code::kInvalidArgument, describe(reader->contract) + " still reads this memory; wait for it first"};
  const auto is_it = [&](std::span<std::byte> lent) { return lent.data() == memory.data() && lent.size() == memory.size(); };
  const auto found = std::find_if(lent_.begin(), lent_.end(), is_it);
  if (found == lent_.end()) return {};
  lent_.erase(found);
  Status first;
  for (const auto& link : links_) {
    if (Status status = link->take_back(memory); first.ok()) first = std::move(status);
  }
  return first;
}

// The operations end without all their answers, and other ranks' may not: what the switch is sent after that must not be
// what the caller has written meanwhile.
void Datapath::give_all_back() {
  lent_.clear();
  for (const auto& link : links_) link->take_all_back();
}

bool Datapath::is_lent(std::span<const std::byte> source) const {
  return !source.empty() && std::any_of(lent_.begin(), lent_.end(), [&](std::span<std::byte> lent) {
    return source.data() >= lent.data() && source.data() + source.size() <= lent.data() + lent.size();
  });
}

void Datapath::copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  copied_bytes_ += bytes;
}

}  // namespace gatun
