// Store: where ranks that have no controller find each other: a key is set once by one rank, and read by all.
//
// Three kinds: the caller's own (PyTorch's store through gatun_store_t), the one that rank 0 serves at the setting
// `rendezvous` for as long as the ranks need to meet, and the controller's PEERS message, which needs no store.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class Store {
 public:
  virtual ~Store() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; kTimeout names it.
  virtual Result<std::string> get(const std::string& key, TimeNs deadline) = 0;
};

// Rank 0 listens at `address` ("host:port"), the others connect to it; all ranks give the same job name, which keeps jobs
// apart that use the address one after the other (a busy address is tried again until the deadline). Destruction on rank 0
// waits, bounded by the deadline, until every other rank has read all that it wanted. Soon after *stop is set (null: never)
// all of it returns kAborted, and the destruction waits for nobody.
Result<std::unique_ptr<Store>> open_rendezvous(const std::string& address, const std::string& job, uint32_t rank,
                                               uint32_t ranks, TimeNs deadline, const std::atomic<bool>* stop = nullptr);

// Every rank gives a text and gets those of all, by rank. kTimeout names the ranks that did not come; kAborted: *stop was
// set.
Result<std::vector<std::string>> exchange(Store& store, const std::string& prefix, uint32_t rank, uint32_t ranks,
                                          const std::string& mine, TimeNs deadline, const std::atomic<bool>* stop = nullptr);

}  // namespace gatun
