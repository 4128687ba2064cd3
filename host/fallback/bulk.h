// BulkStreams: one ordered stream of bytes per pair of ranks and direction, as an engine sees it. The Mesh is one.
//
// Sends and receives match in the order in which they are posted, and both sides must agree on the lengths. Nothing moves by
// itself: whoever waits moves bytes in all directions, so exchanges of any size cannot lock each other. One thread at a
// time.
// Purely virtual, so that a module with hidden symbols can be given one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

class BulkStreams {
 public:
  virtual ~BulkStreams() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;

  // Buffers belong to the streams until the ticket is done, or a wait has failed. Zero bytes are allowed; rank is not one's
  // own. `label` travels with the bytes and is compared: kInternal names a difference.
  using Ticket = uint64_t;
  virtual Ticket post_send(uint32_t rank, const void* data, size_t bytes, uint32_t label) = 0;
  virtual Ticket post_receive(uint32_t rank, void* data, size_t bytes, uint32_t label) = 0;

  // Moves bytes until the ticket (every ticket that was posted) is done. kTimeout and kRankLost name the rank that it waits
  // for. Every error is final: from then on all waits return it.
  virtual Status wait(Ticket ticket, TimeNs deadline) = 0;
  virtual Status wait_all(TimeNs deadline) = 0;
  virtual bool done(Ticket ticket) const = 0;
};

}  // namespace gatun
