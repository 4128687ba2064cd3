// VerbsQueue and the memory that is lent to it (verbs_queue.h).
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "host/transport/verbs_dmabuf.h"
#include "host/transport/verbs_queue.h"

namespace gatun {
namespace {

// As long as a queue pair takes to find out that its peer is gone (kAckTimeout). One that is only slow then ends too.
constexpr TimeNs kPatience = 500 * kMs;
constexpr auto kPause = std::chrono::microseconds(20);

}  // namespace

// Elsewhere a fork() leaves the card with the pages of whoever writes last, or takes them from the child.
bool VerbsQueue::lends() {
  static const bool kept = ::ibv_is_fork_initialized() == IBV_FORK_UNNEEDED;
  return kept;
}

// With the right to write, though the card only reads: a page that has not been written yet, or is shared until it is, gets
// its final place now and not behind the card's back.
Status VerbsQueue::lend(std::span<std::byte> memory) {
  const OpenDevice& device = *config_.device;
  Result<VerbsKey> key = is_gpu_memory(memory)
                             ? make_gpu_key(device, config_.domain, memory, IBV_ACCESS_LOCAL_WRITE)
                             : device.make_key(config_.domain, memory, IBV_ACCESS_LOCAL_WRITE, "register less");
  if (!key.ok()) return key.status();
  lent_.push_back({.memory = memory, .key = std::move(key.value())});
  return {};
}

VerbsQueue::Lent* VerbsQueue::lent_at(const std::byte* payload, uint32_t bytes) {
  for (size_t i = 0; i < lent_.size(); ++i) {
    const size_t place = latest_lent_ + i < lent_.size() ? latest_lent_ + i : latest_lent_ + i - lent_.size();
    if (!holds(lent_[place].memory, payload, bytes)) continue;
    latest_lent_ = place;
    return &lent_[place];
  }
  return nullptr;
}

Status VerbsQueue::take_back(std::span<std::byte> memory) {
  const auto is_it = [&](const Lent& lent) {
    return lent.memory.data() == memory.data() && lent.memory.size() == memory.size();
  };
  const auto found = std::find_if(lent_.begin(), lent_.end(), is_it);
  if (found == lent_.end()) return {};
  Lent lent = std::move(*found);
  lent_.erase(found);
  latest_lent_ = 0;
  return release(lent);
}

// Nothing is sent any more, so what the card still has need not be waited for.
void VerbsQueue::take_all_back() {
  if (lent_.empty()) return;
  fail("its memory is taken back");
  end();
  for (Lent& lent : std::exchange(lent_, {})) (void)release(lent);
}

// Until the card is done with so many works; false: it is not in time. A write of what the peer knows asks for a completion.
bool VerbsQueue::wait_for(uint64_t works, TimeNs patience) {
  flush();
  for (const TimeNs until = now_ns() + patience; completed_ < works; std::this_thread::sleep_for(kPause)) {
    reap();
    if (asked_ < works && failure_.ok() && has_room(1)) {
      write(progress_in_, sizeof(uint32_t), key_->lkey, layout_.progress_out, false, true);
      flush();
    }
    if (completed_ < works && now_ns() >= until) return false;
  }
  return true;
}

// After its key is gone the card cannot read the memory, whatever it has been asked for: that would be the queue pair's end.
Status VerbsQueue::release(Lent& lent) {
  if (!wait_for(lent.last_work, kPatience)) {
    fail("it does not take what was sent, and the memory that this is in was taken back");
    end();
    wait_for(posted_, kPatience);
  }
  const int error = ::ibv_dereg_mr(lent.key.release());
  return error == 0 ? Status() : verbs_error(*config_.device, "deregister memory", error);
}

// The queue pair takes no request any more and gives back those that it has.
void VerbsQueue::end() {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ::ibv_modify_qp(pair_.get(), &attr, IBV_QP_STATE);
}

}  // namespace gatun
