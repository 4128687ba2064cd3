// Gloo's transport over BulkStreams: Gloo's algorithms decide who sends what to whom, the mesh moves it, so deadlines,
// aborts and the names of lost ranks are the same as everywhere.
//
// Gloo matches by slot and we by order; its collectives post both sides of a pair in the same order, and the slot travels as
// label, so a difference would be an error and never a wrong sum. A wait that fails throws Failed; the engine catches it.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <exception>
#include <memory>

#include "host/fallback/bulk.h"

namespace gatun {

class Failed : public std::exception {
 public:
  const char* what() const noexcept override { return "the streams failed"; }
};

class MeshTransport : public gloo::transport::Context {
 public:
  explicit MeshTransport(BulkStreams* streams);

  void begin(TimeNs deadline) { deadline_ = deadline; }  // of the next collective
  const Status& status() const { return status_; }       // after Failed
  BulkStreams& streams() { return streams_; }
  void wait(BulkStreams::Ticket ticket);

  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override;

 private:
  BulkStreams& streams_;
  TimeNs deadline_ = kNever;
  Status status_;
};

// What Gloo's collectives are called with.
class MeshContext : public gloo::Context {
 public:
  explicit MeshContext(BulkStreams* streams);
  MeshTransport& transport() { return *transport_; }

 private:
  std::shared_ptr<MeshTransport> transport_;
};

}  // namespace gatun
