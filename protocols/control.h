// The control channel: messages between a worker and the controller over TCP, and their bytes. PROTOCOL.md is its document.
//
// A frame is u32 length (big-endian, of what follows), u8 version, u8 type, fields. Integers are big-endian; a text is a u16
// length and its bytes. The frame header and the Refused message are the same in all versions, so that two versions can
// always tell each other why they do not talk. Decoding never reads outside its input and refuses trailing bytes; texts
// come out with control characters replaced, so they can be logged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocols/contract.h"
#include "protocols/time.h"

namespace gatun::control {

inline constexpr uint8_t kVersion = 2;  // grows with kWireVersion too: a job's ranks and switch speak both or neither
inline constexpr size_t kFrameBytesMax = 64 * 1024;  // length field's limit
inline constexpr size_t kTextBytesMax = 4096;        // longer texts are cut by encode() and refused by the parser
inline constexpr size_t kNameBytesMax = 128;         // job names, host names
inline constexpr size_t kCardBytesMax = 512;         // how the other ranks reach one
inline constexpr size_t kListMax = 64;               // trees of an Admit, ranks of a Stalled, cards of a Peers

enum class TransportChoice : uint8_t { kAuto = 0, kShm = 1, kUdp = 2, kVerbs = 3 };
enum class FallbackChoice : uint8_t { kOff = 0, kRing = 1, kExact = 2 };
const char* name(TransportChoice choice);
const char* name(FallbackChoice choice);
bool transport_choice(std::string_view name, TransportChoice* choice);
bool fallback_choice(std::string_view name, FallbackChoice* choice);

// Worker to controller: I want to be rank `rank` of `size` in job `job`.
struct Join {
  std::string job;
  uint32_t rank = 0;
  uint32_t size = 0;
  // Settings that must agree on all ranks; 0 = chosen by the controller.
  uint32_t trees = 1;
  uint32_t window = 0;
  uint32_t payload_bytes = 0;
  TransportChoice transport = TransportChoice::kAuto;
  FallbackChoice fallback = FallbackChoice::kOff;
  // Facts of this rank.
  uint32_t path_payload_bytes = 0;  // what one UDP packet to the switch carries, without Gatun's header
  uint32_t receive_bytes = 0;       // its UDP receive buffer as its transport states it; 0 = no limit
  uint32_t join_timeout_ms = 0;     // it gives up after this long
  uint32_t pid = 0;
  uint32_t failovers = 0;     // times that the job has gone on without a switch before
  std::string host;           // host name, for messages
  std::string host_identity;  // equal texts share memory (os.h)
  std::string software;       // "gatun 0.1.0", for messages
  std::string card;           // how the other ranks reach this one without the switch; "" = they cannot, or know it already
};

// Controller to worker: all ranks are here and the switch has room. Attach, prove every tree's data path, then say Ready.
struct Admit {
  struct Tree {
    uint16_t port = 0;  // UDP, at data_ip
    uint8_t lane = 0;   // of the daemon: one shm region per (rank, lane)
    uint8_t child = 0;  // index of this rank at the switch
  };
  uint32_t job = 0;    // handle for packet headers
  uint64_t token = 0;  // what a probe and the shm attach must carry
  uint32_t window = 0;
  uint32_t payload_bytes = 0;
  uint64_t first_seq = 0;
  uint32_t first_op = 0;
  uint32_t keepalive_ms = 0;                          // a side that is silent for this long is lost; speak every third of it
  TransportChoice transport = TransportChoice::kUdp;  // of this rank; never kAuto
  std::string shm_socket;  // abstract unix socket name without its leading zero byte; "" without shm
  std::vector<Tree> trees;
  std::string data_ip;  // of the switch, for UDP; "": the address by which the controller was reached
};

// Both ways between Admit and Ready, once for each lane of the switch that serves a rank by RDMA: the worker's end of its
// queue pair there, then the switch's.
struct Attach {
  uint8_t lane = 0;
  std::string card;  // VerbsCard
};

struct Ready {};  // worker: every tree's data path is proven
struct Start {};  // controller: all ranks are ready

// Both ways. From a worker: how far it is. ask: answer at once.
struct KeepAlive {
  uint8_t ask = 0;
  uint32_t started = 0;   // operations submitted, counted from first_op
  uint32_t finished = 0;  // of those, completed in any way
};

// Worker: the switch refused operation op; this is what I have under that number.
struct Report {
  uint32_t op = 0;
  Contract contract;
};
struct Mismatch {  // controller to every rank that reported op, the same text: what differs
  uint32_t op = 0;
  std::string text;
};

struct Leave {};  // worker: orderly end

// Worker: I give up for all of us (gatun_comm_abort, an operation's deadline, or a data path that cannot be proven).
// Controller to the others: rank did.
struct Abort {
  uint32_t rank = 0;  // filled in by the controller
  std::string text;
  bool timed_out = false;  // an operation's deadline passed
};

struct Lost {  // controller: rank is gone without leaving; the job is over
  uint32_t rank = 0;
  std::string text;
};
struct Left {  // controller: rank left in order; an operation in which it took no part will not complete
  uint32_t rank = 0;
  std::string text;
  uint32_t started = 0;  // operations in which it took part, counted from first_op
};
struct Refused {  // controller: no; the connection ends. Frozen layout: text.
  std::string text;
};
struct Closing {  // controller: the daemon stops
  std::string text;
};

// Worker: operation op waits for these ranks. Controller, back to that worker: what it knows of them.
struct Stalled {
  uint32_t op = 0;
  std::vector<uint16_t> ranks;
  std::string text;
};

// Controller to every rank, when all have joined and before the admission is tried: their cards, by rank.
struct Peers {
  std::vector<std::string> cards;
};

// Controller to every rank that joins, at once and then every kWaitingEvery until Start: I live, and this is what the job
// waits for. Where it stops, the daemon is gone; where it goes on, a rank is.
struct Waiting {
  std::string text;  // "ranks 2, 3 of 4"
};
inline constexpr TimeNs kWaitingEvery = 500 * kMs;

using Message = std::variant<Join, Admit, Ready, Start, KeepAlive, Report, Mismatch, Leave, Abort, Lost, Left, Refused,
                             Closing, Stalled, Peers, Attach, Waiting>;

const char* name(const Message& message);  // "Join"

// Appends one frame.
void encode(const Message& message, std::vector<std::byte>* out);

// Cuts a byte stream into messages. After an error the connection cannot be used any more.
class Parser {
 public:
  enum class Next : uint8_t { kMessage, kMore, kError };

  void push(std::span<const std::byte> bytes);  // call next() until kMore between pushes, so that the buffer stays bounded
  Next next(Message* message);
  const std::string& error() const { return error_; }  // "speaks control protocol 3, this is 1"
  size_t buffered_bytes() const { return buffer_.size() - begin_; }

 private:
  Next fail(std::string why);

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  std::string error_;
};

}  // namespace gatun::control
