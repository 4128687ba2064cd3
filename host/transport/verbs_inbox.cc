#include "host/transport/verbs_inbox.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

namespace gatun {

Result<std::unique_ptr<VerbsInbox>> VerbsInbox::make(std::shared_ptr<OpenDevice> device, uint32_t receives) {
  std::unique_ptr<VerbsInbox> inbox(new VerbsInbox);
  inbox->device_ = device;
  receives = std::min(
      {receives, static_cast<uint32_t>(device->limits().max_srq_wr), static_cast<uint32_t>(device->limits().max_cqe)});
  inbox->channel_.reset(::ibv_create_comp_channel(device->context()));
  if (inbox->channel_ == nullptr) return verbs_error(*device, "make a completion channel", errno);
  const int flags = ::fcntl(inbox->channel_->fd, F_GETFL);
  ::fcntl(inbox->channel_->fd, F_SETFL, flags | O_NONBLOCK);
  inbox->completions_.reset(
      ::ibv_create_cq(device->context(), static_cast<int>(receives), nullptr, inbox->channel_.get(), 0));
  if (inbox->completions_ == nullptr) return verbs_error(*device, "make a completion queue", errno);
  Result<VerbsDomain> domain = device->make_domain();
  if (!domain.ok()) return domain.status();
  inbox->domain_ = std::move(domain.value());
  ibv_srq_init_attr wanted{.srq_context = nullptr, .attr = {.max_wr = receives, .max_sge = 1, .srq_limit = 0}};
  inbox->receives_.reset(::ibv_create_srq(inbox->domain_.get(), &wanted));
  if (inbox->receives_ == nullptr) return verbs_error(*device, "make a shared receive queue", errno);
  for (uint32_t posted = 0; posted < receives; posted += kBurst) {
    if (!inbox->post(std::min<uint32_t>(kBurst, receives - posted))) return verbs_error(*device, "post receives", errno);
  }
  return inbox;
}

bool VerbsInbox::post(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) works_[i].next = i + 1 < count ? &works_[i + 1] : nullptr;
  ibv_recv_wr* refused = nullptr;
  errno = ::ibv_post_srq_recv(receives_.get(), works_.data(), &refused);
  return errno == 0;
}

void VerbsInbox::fetch() {
  if (next_ < fetched_count_) return;
  next_ = 0;
  fetched_count_ = std::max(0, ::ibv_poll_cq(completions_.get(), kBurst, fetched_.data()));
  owed_ += static_cast<uint32_t>(fetched_count_);
  // A queue that has failed (its device is gone) refuses them; then nothing arrives any more, which the protocol notices.
  const uint32_t count = std::min<uint32_t>(owed_, kBurst);
  if (count > 0 && post(count)) owed_ -= count;
}

int VerbsInbox::poll(std::span<uint32_t> queue_pairs) {
  int count = 0;
  fetch();
  for (; next_ < fetched_count_ && count < static_cast<int>(queue_pairs.size()); ++next_) {
    const ibv_wc& done = fetched_[static_cast<size_t>(next_)];
    if (done.status != IBV_WC_SUCCESS || done.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;
    queue_pairs[static_cast<size_t>(count++)] = done.qp_num;
  }
  return count;
}

bool VerbsInbox::prepare_wait() {
  ::ibv_req_notify_cq(completions_.get(), 0);
  fetch();  // what came before the queue was armed announces itself to nobody
  return next_ == fetched_count_;
}

void VerbsInbox::finish_wait() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  unsigned events = 0;
  while (::ibv_get_cq_event(channel_.get(), &queue, &unused) == 0) ++events;
  if (events > 0) ::ibv_ack_cq_events(completions_.get(), events);
}

}  // namespace gatun
