// Operation: the arithmetic of one collective call on one rank. It turns a chunk's index into what this rank adds to the
// chunk and what it keeps of the result. Every rank cuts the same call into the same chunks.
//
//   all-reduce, reduce   the array, cut into chunks; all ranks add (reduce: the root keeps)
//   reduce-scatter       the array of all segments, cut into chunks; a rank keeps what lies in its segment
//   broadcast            the root's bytes, cut into chunks; the others add nothing
//   all-gather           segment after segment, each cut by itself, so that a chunk has one rank that adds to it
//   barrier              one chunk of one byte
//   any of no elements   one chunk of nothing, so that all ranks learn what each of them called
//
// Copies travel as a u8 sum with one contribution. Pure: no memory is touched; all counts and offsets have 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocols/contract.h"

namespace gatun {

class Operation {
 public:
  struct Geometry {
    uint32_t rank = 0;
    uint32_t ranks = 1;
    uint32_t payload_bytes = 1024;  // most payload of one packet
    bool widened = false;           // partial sums travel between switches: a chunk must fit in partial_type
  };

  // What one chunk means on this rank.
  struct Piece {
    const std::byte* source = nullptr;  // bytes to contribute; null: nothing (kFlagEmpty)
    std::byte* target = nullptr;        // where the kept part of the result goes; null: nothing is kept
    uint32_t bytes = 0;                 // of the payload
    uint32_t elems = 0;                 // of the wire type
    uint32_t kept_from = 0;             // the kept part within the payload
    uint32_t kept_bytes = 0;
  };

  Operation() = default;
  Operation(const Contract& contract, const void* send, void* recv, const Geometry& geometry);

  uint64_t chunks() const { return chunks_; }  // at least 1
  bool empty() const { return segment_bytes_ == 0; }
  // What this rank adds lies in here.
  std::span<const std::byte> source() const { return {send_, adds_ ? segment_bytes_ : 0}; }
  Piece piece(uint64_t index) const;  // index < chunks()
  // Elements of a chunk's payload, as piece() says.
  uint32_t piece_elems(uint64_t index) const;

  Type wire_type() const { return wire_type_; }
  Op wire_op() const { return wire_op_; }

  // Bytes of the receive buffer that this rank fills, and of the send buffer that it reads. -1 if 63 bits are not enough.
  static int64_t receive_bytes(const Contract& contract, uint32_t rank, uint32_t ranks);
  static int64_t send_bytes(const Contract& contract, uint32_t rank, uint32_t ranks);

 private:
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  uint64_t segment_bytes_ = 0;   // what is cut into chunks at once
  uint64_t segment_chunks_ = 0;  // chunks of one segment
  uint64_t chunks_ = 0;
  uint64_t kept_begin_ = 0, kept_end_ = 0;  // the part of the segment that goes to recv_
  uint32_t chunk_bytes_ = 0;
  uint32_t rank_ = 0;
  Collective collective_ = Collective::kBarrier;
  Type wire_type_ = Type::kU8;
  Op wire_op_ = Op::kSum;
  bool adds_ = false;  // contributes to every chunk (all-gather: to those of its own segment)
};

}  // namespace gatun
