// VerbsInbox: what arrives at a hub or a link: one completion queue with its channel, and one shared queue of receives.
//
// A receive has no memory of its own: a message announces by its completion that the descriptor in its queue pair's ring is
// written. Every completion uses up a receive and gives one back, so the completion queue cannot overflow. A sender that
// finds no receive is held back by its network card and tries on.
//
// One thread.
#pragma once

#include <array>
#include <cstdint>

#include "host/transport/verbs_device.h"

namespace gatun {

class VerbsInbox {
 public:
  static Result<std::unique_ptr<VerbsInbox>> make(std::shared_ptr<OpenDevice> device, uint32_t receives);

  ibv_srq* receives() const { return receives_.get(); }
  ibv_cq* completions() const { return completions_.get(); }

  // The queue pairs of the next messages, at most kBurst; how many.
  int poll(std::span<uint32_t> queue_pairs);

  // As in Transport.
  bool prepare_wait();
  int wait_fd() const { return channel_->fd; }
  void finish_wait();

 private:
  VerbsInbox() = default;
  void fetch();
  bool post(uint32_t count);

  std::shared_ptr<OpenDevice> device_;
  VerbsChannel channel_;
  VerbsCompletions completions_;
  VerbsDomain domain_;
  VerbsReceives receives_;
  std::array<ibv_recv_wr, kBurst> works_{};
  uint32_t owed_ = 0;                     // receives that could not be posted yet
  std::array<ibv_wc, kBurst> fetched_{};  // from next_ on not handed out yet
  int fetched_count_ = 0, next_ = 0;
};

}  // namespace gatun
