#include "host/fallback/gloo/transport.h"

#include <gloo/common/error.h>
#include <gloo/transport/pair.h>

#include <deque>

namespace gatun {
namespace {

class MeshAddress : public gloo::transport::Address {
 public:
  std::string str() const override { return "gatun mesh"; }
  std::vector<char> bytes() const override { return {}; }
};

// Gloo's collectives only ask whether a pair is there.
class MeshPair : public gloo::transport::Pair {
 public:
  const gloo::transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>&) override {}
  void close() override {}
  void setSync(bool, bool) override {}
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override { return refuse(); }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override { return refuse(); }
  void send(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }
  void recv(gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }

 private:
  [[noreturn]] static std::unique_ptr<gloo::transport::Buffer> refuse() {
    throw gloo::InvalidOperationException("the mesh has no buffers bound to a pair");
  }
  MeshAddress address_;
};

class MeshBuffer : public gloo::transport::UnboundBuffer {
 public:
  MeshBuffer(MeshTransport* transport, void* data, size_t bytes) : UnboundBuffer(data, bytes), transport_(*transport) {}

  bool waitRecv(int* rank, std::chrono::milliseconds) override { return wait(receives_, rank); }
  bool waitSend(int* rank, std::chrono::milliseconds) override { return wait(sends_, rank); }
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    std::byte* from = part(offset, &bytes);
    sends_.push_back({transport_.streams().post_send(static_cast<uint32_t>(to), from, bytes, label(slot)), to});
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    std::byte* to = part(offset, &bytes);
    receives_.push_back({transport_.streams().post_receive(static_cast<uint32_t>(from), to, bytes, label(slot)), from});
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    if (from.size() != 1) throw gloo::InvalidOperationException("the mesh does not receive from any rank");
    recv(from[0], slot, offset, bytes);
  }

 private:
  struct Posted {
    BulkStreams::Ticket ticket;
    int rank;
  };

  // Gloo's slot: prefix of the collective, tag of the call, number within it.
  static uint32_t label(uint64_t slot) { return static_cast<uint32_t>(slot ^ slot >> 32); }

  std::byte* part(size_t offset, size_t* bytes) const {
    if (offset > size) throw gloo::InvalidOperationException("offset behind the buffer");
    if (*bytes == kUnspecifiedByteCount) *bytes = size - offset;
    if (*bytes > size - offset) throw gloo::InvalidOperationException("length behind the buffer");
    return static_cast<std::byte*>(ptr) + offset;
  }

  bool wait(std::deque<Posted>& posted, int* rank) {
    if (posted.empty()) throw gloo::InvalidOperationException("a wait for nothing");
    const Posted first = posted.front();
    posted.pop_front();
    transport_.wait(first.ticket);
    if (rank != nullptr) *rank = first.rank;
    return true;
  }

  MeshTransport& transport_;
  std::deque<Posted> sends_, receives_;
};

}  // namespace

MeshTransport::MeshTransport(BulkStreams* streams)
    : gloo::transport::Context(static_cast<int>(streams->rank()), static_cast<int>(streams->ranks())), streams_(*streams) {
  for (int i = 0; i < size; ++i) {
    if (i != rank) createPair(i);
  }
}

std::unique_ptr<gloo::transport::Pair>& MeshTransport::createPair(int rank) {
  auto& pair = pairs_[static_cast<size_t>(rank)];
  pair = std::make_unique<MeshPair>();
  return pair;
}

std::unique_ptr<gloo::transport::UnboundBuffer> MeshTransport::createUnboundBuffer(void* data, size_t bytes) {
  return std::make_unique<MeshBuffer>(this, data, bytes);
}

void MeshTransport::wait(BulkStreams::Ticket ticket) {
  Status status = streams_.wait(ticket, deadline_);
  if (status.ok()) return;
  status_ = std::move(status);
  throw Failed();
}

MeshContext::MeshContext(BulkStreams* streams)
    : gloo::Context(static_cast<int>(streams->rank()), static_cast<int>(streams->ranks())),
      transport_(std::make_shared<MeshTransport>(streams)) {
  transportContext_ = transport_;
}

}  // namespace gatun
