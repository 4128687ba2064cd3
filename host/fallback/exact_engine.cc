#include <algorithm>
#include <cstring>
#include <numeric>

#include "host/fallback/arithmetic.h"
#include "host/fallback/engine.h"
#include "protocols/float_environment.h"

// An array is worked on in blocks of one piece per rank; rank r owns piece r of each block. Two phases: the pieces go to
// their owners, who add them; the results go to those that need them. Phase one of the next block is under way while a block
// is added, and all ranks post in the same order:
//
//   gather(0)  gather(1) result(0)  gather(2) result(1)  ...
//
// A result is received straight into its place, which may hold the input of an operation in place: it can only arrive when
// its owner has that input.

namespace gatun {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kTileElems = 1024;  // added at once: the accumulators stay in the first cache
constexpr size_t kWidestBytes = 8;
constexpr size_t kDirectBytes = 32 << 10;    // a broadcast of up to this goes from the root to each rank in one step
constexpr size_t kExchangeBytes = 64 << 10;  // most that a rank sends of a short array

enum Phase : uint32_t { kGather = 0, kResult = 1, kPhases = 2 };

class ExactEngine : public Engine {
 public:
  ExactEngine(BulkStreams* streams, TreeOrder order)
      : streams_(*streams), groups_(std::move(order.groups)), rank_(streams->rank()), ranks_(streams->ranks()) {
    std::erase(groups_, 0u);
    if (groups_.empty()) groups_.push_back(ranks_);
    GATUN_CHECK(std::accumulate(groups_.begin(), groups_.end(), uint64_t{0}) == ranks_);
  }

  const char* name() const override { return "exact"; }

  Status run(const Contract& contract, const void* send, void* recv, TimeNs deadline) override {
    const FloatEnvironment environment;
    deadline_ = deadline;
    label_ += kPhases;
    send_ = static_cast<const std::byte*>(send);
    recv_ = static_cast<std::byte*>(recv);
    bytes_ = contract.count * elem_bytes(contract.type);
    if (contract.collective == Collective::kBarrier) return barrier();
    if (contract.count == 0) return {};
    switch (contract.collective) {
      case Collective::kAllGather: return all_gather();
      case Collective::kBroadcast: return broadcast(contract.root);
      default: return reduction(contract);
    }
  }

 private:
  using Ticket = BulkStreams::Ticket;

  template <typename F>
  void each_other(F&& f) {
    for (uint32_t i = 1; i < ranks_; ++i) f((rank_ + i) % ranks_);
  }

  Ticket send(uint32_t to, const std::byte* data, size_t bytes, Phase phase) {
    return streams_.post_send(to, data, bytes, label_ + phase);
  }
  Ticket receive(uint32_t from, std::byte* data, size_t bytes, Phase phase) {
    return streams_.post_receive(from, data, bytes, label_ + phase);
  }

  // --- copies ---

  Status barrier() {
    std::byte nothing{};
    each_other([&](uint32_t peer) {
      send(peer, &nothing, 0, kGather);
      receive(peer, &nothing, 0, kGather);
    });
    return streams_.wait_all(deadline_);
  }

  Status all_gather() {
    std::byte* own = recv_ + rank_ * bytes_;
    if (own != send_) std::memmove(own, send_, bytes_);
    each_other([&](uint32_t peer) {
      send(peer, own, bytes_, kGather);
      receive(peer, recv_ + peer * bytes_, bytes_, kGather);
    });
    return streams_.wait_all(deadline_);
  }

  Status broadcast(uint32_t root) {
    if (rank_ == root && recv_ != send_) std::memmove(recv_, send_, bytes_);
    if (bytes_ <= kDirectBytes || ranks_ <= 2) {
      if (rank_ != root) {
        receive(root, recv_, bytes_, kGather);
      } else {
        each_other([&](uint32_t peer) { send(peer, recv_, bytes_, kGather); });
      }
      return streams_.wait_all(deadline_);
    }
    return spread(root);
  }

  // Each rank is sent its piece and hands it on to the others; the root sends each byte once, and its own piece to all.
  Status spread(uint32_t root) {
    Ticket own[2] = {};
    const uint64_t blocks = blocks_of(bytes_, kPieceBytes);
    for (uint64_t b = 0; b <= blocks; ++b) {
      if (b < blocks) own[b & 1] = post_spread(root, b);
      if (b == 0) continue;
      if (rank_ != root && piece(b - 1, rank_).elems > 0) {
        if (Status status = streams_.wait(own[(b - 1) & 1], deadline_); !status.ok()) return status;
      }
      const Piece mine = piece(b - 1, rank_);
      each_other([&](uint32_t peer) {
        if (peer != root && mine.elems > 0) send(peer, recv_ + mine.begin, mine.elems, kResult);
        const Piece theirs = piece(b - 1, peer);
        if (rank_ != root && theirs.elems > 0) receive(peer, recv_ + theirs.begin, theirs.elems, kResult);
      });
    }
    return streams_.wait_all(deadline_);
  }

  Ticket post_spread(uint32_t root, uint64_t block) {
    if (rank_ != root) {
      const Piece mine = piece(block, rank_);
      return mine.elems > 0 ? receive(root, recv_ + mine.begin, mine.elems, kGather) : 0;
    }
    each_other([&](uint32_t peer) {
      const Piece theirs = piece(block, peer);
      if (theirs.elems > 0) send(peer, recv_ + theirs.begin, theirs.elems, kGather);
    });
    return 0;
  }

  // --- blocks and pieces, in elements ---

  struct Piece {
    uint64_t begin = 0;  // within the array, or within a segment of reduce-scatter
    uint64_t elems = 0;
  };

  uint64_t blocks_of(uint64_t elems, uint64_t piece_elems) {
    elems_ = elems;
    scattered_ = false;
    block_elems_ = piece_elems * ranks_;
    return (elems + block_elems_ - 1) / block_elems_;
  }

  // Every rank owns piece b of block b: of its segment in reduce-scatter, of the one array if that is short.
  uint64_t scattered_blocks_of(uint64_t elems, uint64_t piece_elems) {
    elems_ = elems;
    scattered_ = true;
    block_elems_ = piece_elems;
    return (elems + block_elems_ - 1) / block_elems_;
  }

  Piece piece(uint64_t block, uint32_t owner) const {
    const uint64_t begin = block * block_elems_;
    const uint64_t elems = std::min(block_elems_, elems_ - begin);
    if (scattered_) return {begin, elems};
    const uint64_t from = elems * owner / ranks_, to = elems * (owner + 1) / ranks_;
    return {begin + from, to - from};
  }

  // --- reductions ---

  Status reduction(const Contract& contract) {
    arithmetic_ = &Arithmetic::of(contract.type, contract.op);
    elem_ = arithmetic_->elem_bytes;
    to_all_ = contract.collective == Collective::kAllReduce;
    root_ = contract.collective == Collective::kReduce ? contract.root : ranks_;
    // A short array costs least as one exchange: all ranks get all inputs, and each adds for itself.
    const bool short_array = to_all_ && bytes_ * ranks_ <= kExchangeBytes;
    const bool scatter = contract.collective == Collective::kReduceScatter;
    if (short_array) to_all_ = false;
    segment_elems_ = scatter ? contract.count : 0;
    const uint64_t piece_elems = kPieceBytes / elem_;
    const uint64_t blocks =
        scatter || short_array ? scattered_blocks_of(contract.count, piece_elems) : blocks_of(contract.count, piece_elems);
    const uint64_t longest = std::min(piece_elems, scattered_ ? elems_ : elems_ / ranks_ + 1);
    stride_ = longest * elem_;
    staged_.resize(2 * (ranks_ + 1) * stride_);
    inputs_.resize(ranks_);
    for (uint64_t b = 0; b <= blocks; ++b) {
      if (b < blocks) post_gather(b);
      if (b == 0) continue;
      if (Status status = finish(b - 1); !status.ok()) return status;
    }
    return streams_.wait_all(deadline_);
  }

  struct Tickets {
    std::vector<Ticket> gathers;  // what the block's sum needs, and in reduce-scatter what may then be overwritten
    Ticket result = 0;            // to the root, from staging
    bool has_result = false;
  };

  std::byte* staging(uint64_t block, uint32_t rank) {
    return staged_.data() + ((block & 1) * (ranks_ + 1) + rank) * stride_;
  }

  void post_gather(uint64_t block) {
    Tickets& tickets = tickets_[block & 1];
    tickets.gathers.clear();
    each_other([&](uint32_t peer) {
      const Piece theirs = piece(block, peer);
      const uint64_t segment = segment_elems_ * peer;
      if (theirs.elems > 0) {
        const Ticket sent = send(peer, send_ + (segment + theirs.begin) * elem_, theirs.elems * elem_, kGather);
        // In place, the block's result lies where another rank's input did.
        if (scattered_) tickets.gathers.push_back(sent);
      }
      const Piece mine = piece(block, rank_);
      if (mine.elems > 0) tickets.gathers.push_back(receive(peer, staging(block, peer), mine.elems * elem_, kGather));
    });
  }

  Status finish(uint64_t block) {
    Tickets& tickets = tickets_[block & 1];
    for (Ticket ticket : tickets.gathers) {
      if (Status status = streams_.wait(ticket, deadline_); !status.ok()) return status;
    }
    const Piece mine = piece(block, rank_);
    const bool kept = root_ == ranks_ || root_ == rank_;
    std::byte* result = kept ? recv_ + mine.begin * elem_ : staging(block, ranks_);
    if (tickets.has_result) {  // of the block before the last one, in the same staging
      if (Status status = streams_.wait(tickets.result, deadline_); !status.ok()) return status;
      tickets.has_result = false;
    }
    if (mine.elems > 0) sum(block, mine, result);
    if (root_ != ranks_ && root_ != rank_ && mine.elems > 0) {
      tickets.result = send(root_, result, mine.elems * elem_, kResult);
      tickets.has_result = true;
    }
    if (!to_all_ && root_ != rank_) return {};
    each_other([&](uint32_t peer) {
      if (to_all_ && mine.elems > 0) send(peer, result, mine.elems * elem_, kResult);
      const Piece theirs = piece(block, peer);
      if (theirs.elems > 0) receive(peer, recv_ + theirs.begin * elem_, theirs.elems * elem_, kResult);
    });
    return {};
  }

  void sum(uint64_t block, const Piece& mine, std::byte* result) {
    const uint64_t segment = segment_elems_ * rank_;
    for (uint32_t r = 0; r < ranks_; ++r) {
      inputs_[r] = r == rank_ ? send_ + (segment + mine.begin) * elem_ : staging(block, r);
    }
    alignas(64) std::byte total[kTileElems * kWidestBytes];
    alignas(64) std::byte partial[kTileElems * kWidestBytes];
    for (uint64_t at = 0; at < mine.elems; at += kTileElems) {
      const size_t elems = std::min<uint64_t>(kTileElems, mine.elems - at);
      uint32_t rank = 0;
      for (size_t group = 0; group < groups_.size(); ++group) {
        std::byte* into = group == 0 ? total : partial;
        for (uint32_t i = 0; i < groups_[group]; ++i, ++rank) {
          (i == 0 ? arithmetic_->load : arithmetic_->add)(into, inputs_[rank] + at * elem_, elems);
        }
        if (group > 0) arithmetic_->combine(total, total, partial, elems);
      }
      arithmetic_->store(result + at * elem_, total, elems, ranks_);
    }
  }

  BulkStreams& streams_;
  std::vector<uint32_t> groups_;
  const uint32_t rank_, ranks_;

  // Of the operation that runs.
  TimeNs deadline_ = kNever;
  uint32_t label_ = 0;
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t elems_ = 0, block_elems_ = 1;
  bool scattered_ = false;      // every rank owns a whole block
  uint64_t segment_elems_ = 0;  // from one rank's segment to the next in reduce-scatter's input, else 0
  const Arithmetic* arithmetic_ = nullptr;
  size_t elem_ = 1;
  bool to_all_ = false;
  uint32_t root_ = 0;  // of a reduce, else ranks_
  std::vector<std::byte> staged_;
  size_t stride_ = 0;  // bytes of one piece in staging
  std::vector<const std::byte*> inputs_;
  Tickets tickets_[2];
};

}  // namespace

std::unique_ptr<Engine> make_exact_engine(BulkStreams* streams, TreeOrder order) {
  return std::make_unique<ExactEngine>(streams, std::move(order));
}

}  // namespace gatun
