// Mesh: TCP between all pairs of ranks: what a job needs when its switch is gone. Two connections per pair: one for short
// messages, read at all times by the mesh's thread, and one for bulk bytes, which whoever runs a collective moves itself.
//
// Setting up: every rank opens a MeshListener, publishes card() through a Store or the controller, gathers all cards, and
// calls Mesh::connect(). A peer proves itself with the job's cookie; others are turned away.
//
// Messages: send() from any thread, never blocks; Events from the mesh's thread. Bulk: one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/base/os.h"
#include "host/fallback/bulk.h"
#include "protocols/status.h"
#include "protocols/time.h"

namespace gatun {

// What a rank tells the others about itself.
struct MeshCard {
  Endpoint endpoint;  // where it listens
  std::string host;   // name, for sentences
  uint32_t pid = 0;
  std::string cookie;  // random, 32 hexadecimal digits; rank 0's is the job's

  std::string encode() const;
  static Result<MeshCard> decode(const std::string& text);
  std::string text(uint32_t rank) const;  // "rank 2 (host b, pid 77)"
};

class MeshListener {
 public:
  // Listens at a free port of the local address from which `towards` ("host:port"; need not answer) is reached.
  static Result<std::unique_ptr<MeshListener>> open(const std::string& towards);
  const MeshCard& card() const { return card_; }
  int fd() const { return *fd_; }

 private:
  MeshListener(Fd fd, MeshCard card) : fd_(std::move(fd)), card_(std::move(card)) {}
  Fd fd_;
  MeshCard card_;
};

class Mesh : public BulkStreams {
 public:
  class Events {
   public:
    virtual ~Events() = default;
    // One message; at most kMessageBytesMax.
    virtual void on_mesh_message(uint32_t rank, std::span<const std::byte> message) = 0;
    // The connection to this rank has ended; nothing follows from it. why: "closed its connection", "reset its connection".
    virtual void on_mesh_end(uint32_t rank, const std::string& why) = 0;
  };
  static constexpr size_t kMessageBytesMax = 1 << 20;

  // Blocks until every pair is connected; kTimeout names the ranks that are missing, and why as far as it is known. Takes
  // the listener: nobody joins later.
  static Result<std::unique_ptr<Mesh>> connect(std::unique_ptr<MeshListener> listener, uint32_t rank,
                                               std::vector<MeshCard> cards, TimeNs deadline);
  // Closes everything; what send() queued is written first, within a short bound.
  ~Mesh() override;

  void run(Events* events);  // starts the thread; call once
  void stop();               // no event is called after it returns; not from an event
  void send(uint32_t rank, std::vector<std::byte> message);
  void send_all(const std::vector<std::byte>& message);  // to every other rank

  uint32_t rank() const override;
  uint32_t ranks() const override;
  const MeshCard& card(uint32_t rank) const;

  // Bulk (bulk.h). After an error it cannot be used any more, and it touches no buffer any more.
  Ticket post_send(uint32_t rank, const void* data, size_t bytes, uint32_t label) override;
  Ticket post_receive(uint32_t rank, void* data, size_t bytes, uint32_t label) override;
  Status wait(Ticket ticket, TimeNs deadline) override;
  Status wait_all(TimeNs deadline) override;
  bool done(Ticket ticket) const override;
  void interrupt(Status reason);     // any thread: wait() returns this, now and from now on
  uint64_t bulk_bytes_sent() const;  // with frame headers
  uint64_t bulk_bytes_received() const;

 private:
  class Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gatun
