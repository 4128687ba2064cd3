// Engine: how a collective is done without a switch, over the Mesh. One interface, several engines:
//
//   gloo     Gloo's ring algorithms; sums may be added in another order than the switch adds them (NCCL's and Gloo's class)
//   exact    direct exchange: every rank gathers its segment from all, adds it in the order of the aggregation tree, and all
//            gather the results: as many bytes as a ring, and bit for bit what the switch answers
//   nccl     libnccl, found at run time: send and recv are memory of a GPU
//
// run() blocks in the calling thread until its end, the deadline, or Mesh::interrupt(). All ranks call it with the same
// contract (the caller has compared them) in the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/fallback/bulk.h"
#include "protocols/contract.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  // Every collective, type and operator. send and recv as in the C API: recv of reduce_scatter has count elements and send
  // ranks times that, the mirror for all-gather (Contract::count is what the caller gave). send == recv: in place.
  virtual Status run(const Contract& contract, const void* send, void* recv, TimeNs deadline) = 0;
};

// The order in which the switches of a tree add: groups[i] = number of ranks below leaf i; one group = one level.
struct TreeOrder {
  std::vector<uint32_t> groups;
};

// The streams must outlive the engine. The groups must add up to its ranks (no groups: one level).
std::unique_ptr<Engine> make_exact_engine(BulkStreams* streams, TreeOrder order);
// kUnsupported, with the reason, if Gloo was not built in or its module cannot be loaded.
Result<std::unique_ptr<Engine>> make_gloo_engine(BulkStreams* streams);

// Names or paths of the shared libraries.
struct NcclFiles {
  std::string nccl = "libnccl.so.2";
  std::string cuda = "libcuda.so.1";
};
// send and recv are memory of one GPU, aligned to elements, and what other streams do with them has finished. host, over the
// same streams, does what NCCL does not do as the switch does it, on copies. kUnsupported says which library, version or
// device is missing.
Result<std::unique_ptr<Engine>> make_nccl_engine(BulkStreams* streams, std::unique_ptr<Engine> host,
                                                 const NcclFiles& files = {});

}  // namespace gatun
