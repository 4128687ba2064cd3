// NcclCommunicator: one communicator of NCCL that never blocks the thread for good. Every call is begun, then asked about
// until it has completed, failed, its deadline has come, or the streams were interrupted.
//
// After an error only the end is left. The end is bounded: NCCL's own calls for it may hang with the GPU, so they run on a
// thread of their own, which is left behind if it does not come back.
#pragma once

#include <functional>
#include <string>

#include "host/fallback/bulk.h"
#include "host/fallback/nccl/library.h"

namespace gatun {

// Asks done() until it says true or an error, pausing in between. kTimeout says `late`.
Status wait_until(BulkStreams& streams, TimeNs deadline, const std::string& late, const std::function<Result<bool>()>& done);

class NcclCommunicator {
 public:
  NcclCommunicator(const NcclLibrary& nccl, const CudaDriver& cuda, BulkStreams* streams)
      : nccl_(nccl), cuda_(cuda), streams_(*streams) {}
  ~NcclCommunicator() { end(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // All ranks, with the context of their GPU current.
  Status create(TimeNs deadline);
  bool created() const { return ready_; }
  NcclComm handle() const { return comm_; }

  // Waits for a collective that was begun on the stream.
  Status finish(const char* call, NcclResult begun, CudaStream stream, TimeNs deadline);

  // Both end it and say whether NCCL has come back in time: end() after other ranks have what NCCL still owes them, drop()
  // at once.
  bool end() { return end_by(ready_); }
  bool drop() { return end_by(false); }

 private:
  Status share(NcclUniqueId* id, TimeNs deadline);
  Result<bool> settled(const char* call) const;
  bool end_by(bool flush);

  const NcclLibrary& nccl_;
  const CudaDriver& cuda_;
  BulkStreams& streams_;
  NcclComm comm_ = nullptr;
  bool ready_ = false;
};

}  // namespace gatun
