// Aggregator: decides what one switch does with the packets of one (job, tree), at any level of the tree.
//
// It keeps two banks of W slots; slot and bank come from the chunk number, which each bank also stores. A bank goes from
// empty to filling (some children have contributed) to completed (all have; an inner switch has sent its partial result up)
// to answered (the result is here). It holds no payload, no clock and no socket: the caller owns a payload table indexed by
// bank() and child, and does what the decision says.
//
// Invariant: when a contribution for chunk s arrives first, every worker holds all answers up to s - 2W, because some worker
// sent s while it held the answer to s - W, which contains everybody's contribution, each sent while holding s - 2W.
// A refused chunk makes the W - 1 after it void (worker.h): their banks are emptied and late contributions to them dropped.
#pragma once

#include <cstdint>
#include <vector>

#include "protocols/mutation.h"
#include "protocols/wire.h"

namespace gatun {

inline constexpr int kChildrenMax = 64;
inline constexpr uint32_t kWindowMax = 4096;  // chunks, a power of two

class Aggregator {
 public:
  struct Config {
    uint32_t window = 16;   // W, power of two, at most kWindowMax
    uint32_t children = 1;  // 1..kChildrenMax
    bool root = true;
  };

  enum class Action : uint8_t {
    kDrop,       // count drop and forget the packet
    kKeep,       // keep the payload in (bank, child)
    kComplete,   // keep it; now all children are here: reduce, then answer all children (root) or send up (inner)
    kRefuse,     // keep nothing; all children are here and disagree: answer kFlagRefused (root) or send it up (inner)
    kRepeat,     // an answered chunk: send the stored answer to this child again
    kRepeatUp,   // complete, not answered: send the partial result (or refusal) up again
    kStatus,     // still filling: tell this child who is missing
    kDeliver,    // on_result: store the answer and send it to all children
  };
  enum class Drop : uint8_t { kNone, kBadChild, kStale, kUnexpected, kFields };

  struct Decision {
    Action action = Action::kDrop;
    Drop drop = Drop::kNone;
    uint32_t bank = 0;
    uint64_t released = 0;  // children whose payloads in this bank are no longer needed, before anything else is done
  };

  struct Bank {
    uint32_t seq = 0;
    uint8_t state = 0;  // State
    bool refused = false;
    bool congested = false;
    uint64_t arrived = 0;        // children that contributed
    uint64_t with_payload = 0;   // of those, the ones that carry data
    uint64_t partial = 0;        // of those, the ones that carry partial_type
    uint32_t contract = 0;
    uint32_t elems = 0;
    uint32_t contributors = 0;
    uint16_t op = 0;             // lowest among the contributions when refused
    Type elem_type = Type::kU8;
    Op reduce_op = Op::kSum;
  };
  enum State : uint8_t { kEmpty, kFilling, kCompleted, kAnswered, kVoid };

  explicit Aggregator(const Config& config);

  // A kData packet of a child. congested: the packet or the queue it came through was marked.
  Decision on_contribution(const Header& header, bool congested);
  // A kResult packet of the parent (inner switches only).
  Decision on_result(const Header& header, bool congested);
  // After a refusal was decided (kRefuse at the root, kDeliver of a refusal below it): the children whose payloads in one
  // more of the void banks are no longer needed, until there is none (false). What is not asked for comes when the
  // bank is taken.
  bool poll_void(uint32_t* bank, uint64_t* released);

  const Bank& bank(uint32_t index) const { return banks_[index]; }
  // The header fields of the answer (or, at an inner switch, of the partial result) for a completed bank.
  Header make_header(uint32_t index) const;
  // Children that have not contributed to this bank.
  uint64_t missing(uint32_t index) const { return all_ & ~banks_[index].arrived; }
  // Children whose payloads in this bank the caller still keeps for it.
  uint64_t held(uint32_t index) const { return held(banks_[index]); }
  bool root() const { return config_.root; }
  uint32_t banks() const { return static_cast<uint32_t>(banks_.size()); }
  uint32_t children() const { return config_.children; }
  // Banks that wait for something: 0 when the job is quiet.
  uint32_t open_banks() const;

 private:
  void begin_void(uint32_t refused_seq);
  static uint64_t held(const Bank& bank) { return bank.state == kFilling || bank.state == kVoid ? bank.with_payload : 0; }
  uint32_t index_of(uint32_t seq) const {
    return seq & ((mutated(Mutation::kOneBank) ? config_.window : 2 * config_.window) - 1);
  }

  Config config_;
  uint64_t all_;
  std::vector<Bank> banks_;  // 2W, sized once
  uint32_t refused_seq_ = 0;  // latest refused chunk
  uint32_t void_next_;        // chunks behind it that poll_void has looked at; W when done
};

}  // namespace gatun
