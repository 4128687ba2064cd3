// Datapath: one rank's operations on the wire. It joins the Worker's decisions to bytes: gathers what is sent from the
// caller's tensors (or copies it into memory shared with the switch), and copies results out of packets into the tensors.
//
// pass() is one turn: receive, repeat, send new. Finished requests come out of poll_completed(), refused operations out of
// poll_refused(). No clock, no lock, no allocation after construction. Whoever holds the lane's token calls.
//
// When the switch is dead, freeze() ends the turns for good; what was in flight is then finished from outside (ring.cc) with
// the functions behind it: datapath_frozen.cc.
//
// Invariant: a packet that waits in a batch points into a tensor only while its operation is unfinished.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "host/lib/request.h"
#include "host/transport/transport.h"
#include "protocols/recovery.h"
#include "protocols/wire.h"
#include "protocols/worker.h"

namespace gatun {

class Datapath {
 public:
  struct TreePath {
    uint32_t link = 0;  // index of its transport
    PeerId peer = 0;
    uint8_t child = 0;           // this rank at the switch
    std::byte* arena = nullptr;  // window x payload_bytes that the switch can read; null: payloads may lie anywhere
  };
  struct Config {
    uint32_t job = 0;
    uint32_t payload_bytes = 0;
    Worker::Config worker;
    std::vector<TreePath> trees;  // worker.trees of them
    bool checksum = true;         // false: the transports cannot corrupt
    bool retain = false;          // keep the last W answers per tree for ranks that lack them when the switch dies
  };

  // What is known of the chunk that a tree waits for.
  struct Stall {
    bool found = false;  // there is such a chunk
    uint32_t tree = 0;
    uint64_t index = 0;    // chunk of its operation
    uint64_t missing = 0;  // ranks that the switch waits for, one bit each; 0: it has not said
    TimeNs heard_at = 0;   // last packet from the switch on this tree; 0: none
  };

  // An operation on which the ranks disagree.
  struct Refusal {
    uint32_t number = 0;
    Contract contract;           // what this rank has under that number
    Request* request = nullptr;  // still pending, and the caller's from now on; null if it had ended here
  };

  Datapath(Config config, std::vector<std::unique_ptr<Transport>> links);

  // Commands. submit() numbers the request.
  bool can_submit() const { return worker_.can_submit() && completed_tail_ - completed_head_ < kOperationsMax; }
  void submit(Request* request);
  void fail_all(const Status& status);  // the end of this datapath; pass() does nothing after it

  void complete(Request* request, Status status);  // queues it for poll_completed()

  // Between two turns. Operations whose source lies in lent memory are sent from there, where the transports can.
  Status lend(std::span<std::byte> memory);
  // Afterwards nothing reads it. Refused while an operation does that has not ended.
  Status take_back(std::span<std::byte> memory);

  // After the switch's death. Operations are named by their numbers, and must be those of the plan or behind it.
  Holdings freeze();
  // The payload of an answer that is among the last W of its tree. False: it is not (only without Config::retain).
  bool retained(uint32_t op, uint64_t index, std::span<const std::byte>* payload) const;
  const Operation& operation(uint32_t op) const { return record(op).operation; }
  // An answer that came another way: copies what is kept of it, if the operation still lives.
  void deliver(uint32_t op, uint64_t index, const std::byte* payload);
  // Takes the request out; null if it had ended.
  Request* take(uint32_t op) { return release(record(op)); }

  // One turn. Returns whether anything was received or sent.
  bool pass(TimeNs now);

  // Decisions.
  Request* poll_completed();  // its status is set; null: none
  bool poll_refused(Refusal* refusal);
  TimeNs poll_timer(TimeNs now) const;  // pass() must be called again by then

  // Getters.
  const std::vector<std::unique_ptr<Transport>>& links() const { return links_; }
  const Worker& worker() const { return worker_; }
  bool reliable() const { return config_.worker.reliable; }  // all links are
  bool frozen() const { return frozen_; }
  uint64_t copied_bytes() const { return copied_bytes_; }  // of payloads, to and from the tensors and to retain them
  uint64_t dropped() const { return dropped_; }              // packets received and refused
  Status health() const;                                     // of the first link that is not well
  // Since when the switch has been asked on some tree without a word from it; kNever: it has not.
  TimeNs unanswered_since() const;
  Stall stall(const Request& request) const;
  // f(Request*) for every live one, oldest first.
  template <typename F>
  void for_each_live(F f) const {
    for (uint32_t number = worker_.next_op() - kOperationsMax; number != worker_.next_op(); ++number) {
      const Record& r = record(number);
      if (r.request && r.number == number) f(r.request);
    }
  }

 private:
  // An operation by number. It outlives its request: chunks of a failed one that are in flight are repeated without payload,
  // and a rank that is done with it still reports its contract.
  struct Record {
    uint32_t number = 0;
    uint32_t fingerprint = 0;
    bool used = false;
    bool reported = false;
    bool keeps = false;  // answers in its tensor are retained there
    bool lent = false;   // its source is sent from where it is
    Contract contract;
    Operation operation;
    Request* request = nullptr;  // null once it has ended
  };
  // Packets that go out together. One that had no room stays until the next turn, if its operation still lives then.
  struct Batch {
    std::array<TxPacket, kBurst> packets;
    std::array<uint32_t, kBurst> numbers;  // operations that they belong to
    std::array<bool, kBurst> borrowed;     // payload lies in the operation's tensor
    uint32_t count = 0;
  };
  struct TreeState {
    Seq status_seq = 0;
    uint64_t missing = 0;
    bool told = false;  // status_seq and missing say something
    TimeNs heard_at = 0;
    TimeNs asked_at = kNever;  // the first packet sent since the last that only a living tree can have sent
  };

  struct Kept {
    std::span<const std::byte> payload;
    uint32_t op = 0;
    bool in_tensor = false;  // of that operation, until it ends
  };
  struct Keep {
    Keep(const Config& config)
        : index(config.worker.trees, config.worker.window), kept(size_t{config.worker.trees} * config.worker.window) {}
    Retained index;
    std::vector<Kept> kept;         // by tree and place
    std::vector<std::byte> copies;  // of those that do not stay where they came; sized by the first
  };

  int receive(uint32_t link, TimeNs now);
  void on_packet(uint32_t link, const RxPacket& packet, TimeNs now);
  bool on_result(const Header& header, const RxPacket& packet, TimeNs now);
  void retain(uint32_t tree, const Worker::Outcome& outcome, const RxPacket& packet, const Operation::Piece& piece);
  void copy_kept(size_t place, const std::byte* payload, uint32_t bytes);
  Request* release(Record& record);
  void give_all_back();
  bool is_lent(std::span<const std::byte> source) const;
  void copy(std::byte* to, const std::byte* from, size_t bytes);
  bool on_refused(const Header& header, TimeNs now);
  bool on_status(const Header& header, const RxPacket& packet, TimeNs now);
  bool send(TimeNs now);
  void encode_chunk(const Worker::Chunk& chunk);
  bool flush(uint32_t link);
  static void move_packet(Batch& batch, uint32_t from, uint32_t to);
  Record& record(uint32_t number) { return records_[number & (records_.size() - 1)]; }
  const Record& record(uint32_t number) const { return records_[number & (records_.size() - 1)]; }

  Config config_;
  std::vector<std::unique_ptr<Transport>> links_;
  Worker worker_;
  std::vector<Batch> batches_;  // per link
  std::vector<TreeState> trees_;
  std::unique_ptr<Keep> keep_;   // with Config::retain
  bool lends_ = false;           // all links do
  std::vector<std::span<std::byte>> lent_;
  std::vector<Record> records_;  // a power of two
  std::array<RxPacket, kBurst> received_;
  std::array<Request*, 2 * kOperationsMax> completed_;  // ring
  uint32_t completed_head_ = 0, completed_tail_ = 0;
  std::array<Refusal, kOperationsMax> refused_;  // ring
  uint32_t refused_head_ = 0, refused_tail_ = 0;
  uint64_t dropped_ = 0, copied_bytes_ = 0;
  bool failed_ = false, frozen_ = false;
};

}  // namespace gatun
