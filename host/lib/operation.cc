#include "host/lib/operation.h"

#include <algorithm>

#include "protocols/status.h"
#include "protocols/wire.h"

namespace gatun {
namespace {

constexpr std::byte kBarrierByte{0};

bool is_copy(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kBroadcast;
}

uint64_t ceil_div(uint64_t a, uint64_t b) {
  return a / b + (a % b != 0);
}

// count elements, `times` times over, in bytes.
int64_t bytes_of(const Contract& contract, uint32_t times) {
  const unsigned __int128 bytes = static_cast<unsigned __int128>(contract.count) * elem_bytes(contract.type) * times;
  return bytes > static_cast<unsigned __int128>(INT64_MAX) ? -1 : static_cast<int64_t>(bytes);
}

}  // namespace

int64_t Operation::receive_bytes(const Contract& contract, uint32_t rank, uint32_t ranks) {
  switch (contract.collective) {
    case Collective::kAllGather: return bytes_of(contract, ranks);
    case Collective::kReduce: return rank == contract.root ? bytes_of(contract, 1) : 0;
    case Collective::kBarrier: return 0;
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kBroadcast: break;
  }
  return bytes_of(contract, 1);
}

int64_t Operation::send_bytes(const Contract& contract, uint32_t rank, uint32_t ranks) {
  switch (contract.collective) {
    case Collective::kReduceScatter: return bytes_of(contract, ranks);
    case Collective::kBroadcast: return rank == contract.root ? bytes_of(contract, 1) : 0;
    case Collective::kBarrier: return 0;
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduce: break;
  }
  return bytes_of(contract, 1);
}

Operation::Operation(const Contract& contract, const void* send, void* recv, const Geometry& geometry)
    : send_(static_cast<const std::byte*>(send)),
      recv_(static_cast<std::byte*>(recv)),
      rank_(geometry.rank),
      collective_(contract.collective) {
  if (collective_ == Collective::kBarrier) {
    send_ = &kBarrierByte;
    segment_bytes_ = segment_chunks_ = chunks_ = 1;
    chunk_bytes_ = 1;
    adds_ = true;
    return;
  }
  const bool copy = is_copy(collective_);
  if (!copy) {
    wire_type_ = contract.type;
    wire_op_ = contract.op;
  }
  const size_t elem = elem_bytes(wire_type_);
  const size_t widest = geometry.widened ? elem_bytes(partial_type(wire_type_)) : elem;
  const uint64_t chunk_elems = std::min<uint64_t>(geometry.payload_bytes / widest, kElemsMax);
  GATUN_CHECK(chunk_elems > 0);
  chunk_bytes_ = static_cast<uint32_t>(chunk_elems * elem);

  const uint64_t bytes = contract.count * elem_bytes(contract.type);
  const bool root = rank_ == contract.root;
  segment_bytes_ = collective_ == Collective::kReduceScatter ? bytes * geometry.ranks : bytes;
  segment_chunks_ = std::max<uint64_t>(ceil_div(segment_bytes_, chunk_bytes_), 1);
  chunks_ = collective_ == Collective::kAllGather && bytes > 0 ? segment_chunks_ * geometry.ranks : segment_chunks_;
  kept_begin_ = collective_ == Collective::kReduceScatter ? bytes * rank_ : 0;
  kept_end_ = collective_ == Collective::kReduce && !root ? 0 : kept_begin_ + bytes;
  adds_ = collective_ != Collective::kBroadcast || root;
}

uint32_t Operation::piece_elems(uint64_t index) const {
  const uint64_t offset = (collective_ == Collective::kAllGather ? index % segment_chunks_ : index) * chunk_bytes_;
  const uint64_t bytes = std::min<uint64_t>(chunk_bytes_, segment_bytes_ - offset);
  return static_cast<uint32_t>(bytes / elem_bytes(wire_type_));
}

Operation::Piece Operation::piece(uint64_t index) const {
  uint64_t segment = 0;
  uint64_t within = index;
  bool adds = adds_;
  if (collective_ == Collective::kAllGather) {
    segment = index / segment_chunks_;
    within = index % segment_chunks_;
    adds = segment == rank_;
  }
  const uint64_t begin = within * chunk_bytes_;
  const uint64_t end = std::min(begin + chunk_bytes_, segment_bytes_);
  Piece piece;
  piece.bytes = static_cast<uint32_t>(end - begin);
  piece.elems = static_cast<uint32_t>(piece.bytes / elem_bytes(wire_type_));
  if (adds && piece.bytes > 0) piece.source = send_ + (collective_ == Collective::kBarrier ? 0 : begin);
  const uint64_t kept_from = std::max(begin, kept_begin_);
  const uint64_t kept_to = std::min(end, kept_end_);
  if (kept_from < kept_to) {
    piece.target = recv_ + segment * segment_bytes_ + (kept_from - kept_begin_);
    piece.kept_from = static_cast<uint32_t>(kept_from - begin);
    piece.kept_bytes = static_cast<uint32_t>(kept_to - kept_from);
  }
  return piece;
}

}  // namespace gatun
