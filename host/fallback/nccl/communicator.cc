#include "host/fallback/nccl/communicator.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "host/base/os.h"

namespace gatun {
namespace {

constexpr uint32_t kLabelId = 0x4e43434c;  // "NCCL"
constexpr int kYields = 64;                // questions before the first sleep: a short collective takes as long
constexpr TimeNs kPause = 20 * kUs;        // then between two questions
constexpr TimeNs kFlushTime = 1 * kSecond;
constexpr TimeNs kEndTime = 1 * kSecond;  // patience with the calls that end a communicator
constexpr const char* kInit = "ncclCommInitRankConfig";

void pause(int questions) {
  if (questions <= kYields) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPause));
  }
}

// NCCL may still be sending what this rank's last collective has given it.
bool flushed(const NcclLibrary& nccl, NcclComm comm) {
  const TimeNs until = now_ns() + kFlushTime;
  NcclResult state = nccl.finalize(comm);
  for (int questions = 1; state == NcclResult::kInProgress && now_ns() < until; ++questions) {
    pause(questions);
    if (nccl.async_error(comm, &state) != NcclResult::kSuccess) return false;
  }
  return state == NcclResult::kSuccess;
}

}  // namespace

Status wait_until(BulkStreams& streams, TimeNs deadline, const std::string& late,
                  const std::function<Result<bool>()>& done) {
  for (int questions = 1;; ++questions) {
    const Result<bool> answer = done();
    if (!answer.ok()) return answer.status();
    if (answer.value()) return {};
    // Nothing is posted, so this returns at once, and only an interruption is an error.
    if (Status status = streams.wait_all(kNever); !status.ok()) return status;
    if (now_ns() >= deadline) return {Code::kTimeout, late};
    pause(questions);
  }
}

Status NcclCommunicator::create(TimeNs deadline) {
  NcclUniqueId id;
  const bool first = streams_.rank() == 0;
  const NcclResult made = first ? nccl_.unique_id(&id) : NcclResult::kSuccess;
  if (made != NcclResult::kSuccess) id = {};
  if (Status status = share(&id, deadline); !status.ok()) return status;
  if (made != NcclResult::kSuccess) return nccl_.error("ncclGetUniqueId", made, nullptr);
  if (std::all_of(std::begin(id.bytes), std::end(id.bytes), [](char byte) { return byte == 0; })) {
    return {Code::kRankLost, "rank 0 could not begin a communicator of NCCL; see its own error"};
  }
  NcclConfig config;
  config.blocking = 0;
  // The switch may be reached as NCCL's CollNet, and this way is the one without it. That it is the ring cannot be said per
  // communicator, only for the whole process, by NCCL_ALGO=Ring in its environment, which is the user's.
  config.collnet_enable = 0;
  const NcclResult begun =
      nccl_.init(&comm_, static_cast<int>(streams_.ranks()), id, static_cast<int>(streams_.rank()), &config);
  if (begun != NcclResult::kSuccess && begun != NcclResult::kInProgress) return nccl_.error(kInit, begun, nullptr);
  const std::string late = std::string(kInit) +
                           " has not completed before the deadline: a rank is not there, or NCCL's network between the "
                           "ranks does not work (NCCL_SOCKET_IFNAME names the interface, NCCL_DEBUG=INFO shows its choice)";
  const Status status = wait_until(streams_, deadline, late, [&] { return settled(kInit); });
  ready_ = status.ok();
  return status;
}

// Rank 0 tells the others.
Status NcclCommunicator::share(NcclUniqueId* id, TimeNs deadline) {
  for (uint32_t rank = 1; streams_.rank() == 0 && rank < streams_.ranks(); ++rank) {
    streams_.post_send(rank, id->bytes, sizeof id->bytes, kLabelId);
  }
  if (streams_.rank() != 0) streams_.post_receive(0, id->bytes, sizeof id->bytes, kLabelId);
  return streams_.wait_all(deadline);
}

// Whether NCCL has done in the background what the last call left in progress.
Result<bool> NcclCommunicator::settled(const char* call) const {
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = nccl_.async_error(comm_, &state);
  if (asked != NcclResult::kSuccess) return nccl_.error("ncclCommGetAsyncError", asked, comm_);
  if (state == NcclResult::kInProgress) return false;
  if (state != NcclResult::kSuccess) return nccl_.error(call, state, comm_);
  return true;
}

Status NcclCommunicator::finish(const char* call, NcclResult begun, CudaStream stream, TimeNs deadline) {
  if (begun != NcclResult::kSuccess && begun != NcclResult::kInProgress) return nccl_.error(call, begun, comm_);
  const std::string late =
      std::string(call) + " has not completed before the deadline: a rank has not called it, or its GPU hangs";
  return wait_until(streams_, deadline, late, [&]() -> Result<bool> {
    // Until then the collective may not be on the stream, and an idle stream says nothing.
    Result<bool> enqueued = settled(call);
    if (!enqueued.ok() || !enqueued.value()) return enqueued;
    const int result = cuda_.query_stream(stream);
    if (result != CudaDriver::kSuccess && result != CudaDriver::kNotReady) return cuda_.error(call, result);
    return result == CudaDriver::kSuccess;
  });
}

bool NcclCommunicator::end_by(bool flush) {
  ready_ = false;
  if (comm_ == nullptr) return true;
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  // Owns all that it needs: it may outlive this object.
  std::thread caller([nccl = nccl_, comm = std::exchange(comm_, nullptr), flush, ended] {
    (flush && flushed(nccl, comm) ? nccl.destroy : nccl.drop)(comm);
    ended->set_value();
  });
  const bool back = end.wait_for(std::chrono::nanoseconds(kFlushTime + kEndTime)) == std::future_status::ready;
  back ? caller.join() : caller.detach();
  return back;
}

}  // namespace gatun
