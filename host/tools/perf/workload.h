// One row's work: buffers, the collective on them, and the check of every element.
//
// A workload owns `slices` independent sets of buffers, so that several operations can be in flight (-m). Guard bytes stand
// on both sides of every buffer. In place follows NCCL: the short buffer lies inside the long one at this rank's part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gatun/gatun.h"
#include "host/tools/perf/numbers.h"
#include "host/tools/perf/options.h"

namespace gatun::perf {

// Memory with guard bytes on both sides; `misalign_bytes` shifts its start off a page boundary.
class GuardedBuffer {
 public:
  GuardedBuffer(size_t bytes, size_t misalign_bytes);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  unsigned char* data() { return data_; }
  bool guards_intact() const;

 private:
  unsigned char* block_;
  unsigned char* data_;
  size_t bytes_;
};

// What one row does, in elements.
struct Shape {
  Collective collective = Collective::kAllReduce;
  gatun_type_t type = GATUN_F32;
  gatun_op_t op = GATUN_SUM;
  int root = 0;
  int rank = 0, nranks = 1;
  uint64_t count = 0;  // the argument of the call, as nccl-tests prints it
  uint64_t send_elems = 0, recv_elems = 0;
  uint64_t bytes() const;     // of the larger buffer: what nccl-tests calls size
  double bus_factor() const;  // busbw = algbw times this
};
// The shape whose larger buffer has at most `bytes`.
Shape make_shape(const Options& options, int rank, int nranks, gatun_type_t type, gatun_op_t op, int root, uint64_t bytes);

class Workload {
 public:
  // `elems` of the largest type at most; buffers are for any shape of at most `bytes_max`.
  Workload(uint64_t bytes_max, int slices, int unalign_elems);
  ~Workload();

  // The buffers are registered from now on. "" or the library's sentence.
  std::string enroll(gatun_comm_t comm);
  void set_shape(const Shape& shape, bool in_place);
  void fill(uint64_t seed);  // inputs of this rank; where the result goes is poisoned, so that no result is wrong
  // Runs the collective once per slice, all in flight together. "" or the library's sentence.
  std::string run(gatun_comm_t comm);
  // Elements of this rank that differ from the reference; bytes written behind the result or in the input count as well.
  uint64_t wrong(uint64_t seed);
  bool guards_intact() const;
  void* data(int slice) { return recv(slice); }  // the in-place buffer of an all-reduce, for peers

 private:
  unsigned char* send(int slice);
  unsigned char* recv(int slice);
  size_t poisoned_bytes() const;
  uint64_t wrong_in_slice(int slice, uint64_t seed);
  int start(gatun_comm_t comm, int slice, gatun_request_t* request);
  int call(gatun_comm_t comm);

  int slices_;
  int unalign_elems_;
  size_t stride_bytes_;
  GuardedBuffer first_, second_;  // send and recv; in place uses only the second
  Shape shape_;
  bool in_place_ = false;
  gatun_comm_t enrolled_at_ = nullptr;
};

}  // namespace gatun::perf
