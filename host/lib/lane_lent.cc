// The lane and registered memory. A path gets it while it is in use: from the registration on, or from when the lane goes
// over to it, until it is frozen. So of all paths only the one in use ever reads it.
#include "host/lib/lane.h"

namespace gatun {

Status Lane::register_memory(std::span<std::byte> memory) {
  Lock lock(mutex_);
  Status status;
  between_turns(lock, [&] {
    bool first = false;
    status = registrations_.add(memory, &first);
    if (!status.ok() || !first || !path_) return;
    status = path_->datapath().lend(memory);
    if (!status.ok()) (void)registrations_.remove(memory.data());
  });
  return status;
}

Status Lane::deregister_memory(const void* address) {
  Lock lock(mutex_);
  Status status;
  between_turns(lock, [&] {
    bool last = false;
    const std::span<std::byte> memory = registrations_.find(address, &last);
    if (last && path_) status = path_->datapath().take_back(memory);
    if (status.code() == Code::kInvalidArgument) return;  // an operation uses it
    if (Status removed = registrations_.remove(address); status.ok()) status = std::move(removed);
  });
  return status;
}

// To a path that the lane goes over to.
void Lane::lend_all(Lock&) {
  registrations_.for_each([&](std::span<std::byte> memory) {
    const Status status = path_->datapath().lend(memory);
    if (!status.ok()) log_->warn("registered memory is copied from now on: %s", status.message());
  });
}

}  // namespace gatun
