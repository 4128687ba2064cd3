#include "host/tools/perf/workload.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace gatun::perf {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xC9, kPoison = 0xA5;
constexpr uint64_t kCheckElems = 8192;  // compared at a time, in cache

bool all_equal(const unsigned char* bytes, size_t count, unsigned char value) {
  return std::all_of(bytes, bytes + count, [value](unsigned char byte) { return byte == value; });
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, size_t misalign_bytes) : bytes_(bytes) {
  const size_t total = kPageBytes + misalign_bytes + bytes + kGuardBytes;
  block_ = static_cast<unsigned char*>(std::aligned_alloc(kPageBytes, (total + kPageBytes - 1) / kPageBytes * kPageBytes));
  if (block_ == nullptr) {
    std::fprintf(stderr, "gatun perf: no memory for a buffer of %zu bytes: lower --maxbytes\n", bytes);
    std::_Exit(1);
  }
  data_ = block_ + kPageBytes + misalign_bytes;
  std::memset(data_ - kGuardBytes, kGuard, kGuardBytes);
  std::memset(data_, 0, bytes);  // resident before anything is timed
  std::memset(data_ + bytes, kGuard, kGuardBytes);
}

GuardedBuffer::~GuardedBuffer() {
  std::free(block_);
}

bool GuardedBuffer::guards_intact() const {
  return all_equal(data_ - kGuardBytes, kGuardBytes, kGuard) && all_equal(data_ + bytes_, kGuardBytes, kGuard);
}

uint64_t Shape::bytes() const {
  return std::max(send_elems, recv_elems) * elem_bytes(type);
}

double Shape::bus_factor() const {
  switch (collective) {
    case Collective::kAllReduce: return 2.0 * (nranks - 1) / nranks;
    case Collective::kReduceScatter:
    case Collective::kAllGather: return 1.0 * (nranks - 1) / nranks;
    default: return 1;
  }
}

Shape make_shape(const Options& options, int rank, int nranks, gatun_type_t type, gatun_op_t op, int root, uint64_t bytes) {
  Shape shape{options.collective, type, op, root, rank, nranks, 0, 0, 0};
  const uint64_t elems = bytes / elem_bytes(type);
  switch (options.collective) {
    case Collective::kBarrier: break;
    case Collective::kReduceScatter:
      shape.count = shape.recv_elems = elems / static_cast<uint64_t>(nranks);
      shape.send_elems = shape.count * static_cast<uint64_t>(nranks);
      break;
    case Collective::kAllGather:
      shape.count = shape.send_elems = elems / static_cast<uint64_t>(nranks);
      shape.recv_elems = shape.count * static_cast<uint64_t>(nranks);
      break;
    default: shape.count = shape.send_elems = shape.recv_elems = elems;
  }
  return shape;
}

Workload::Workload(uint64_t bytes_max, int slices, int unalign_elems)
    : slices_(slices),
      unalign_elems_(unalign_elems),
      stride_bytes_((bytes_max + kGuardBytes - 1) / kGuardBytes * kGuardBytes),
      first_(stride_bytes_ * static_cast<size_t>(slices), static_cast<size_t>(unalign_elems) * 8),
      second_(stride_bytes_ * static_cast<size_t>(slices), static_cast<size_t>(unalign_elems) * 8) {}

Workload::~Workload() {
  if (enrolled_at_ == nullptr) return;
  gatun_deregister(enrolled_at_, first_.data());
  gatun_deregister(enrolled_at_, second_.data());
}

std::string Workload::enroll(gatun_comm_t comm) {
  const size_t bytes = stride_bytes_ * static_cast<size_t>(slices_);
  if (gatun_register(comm, first_.data(), bytes) != GATUN_SUCCESS) return gatun_last_error(comm);
  if (gatun_register(comm, second_.data(), bytes) != GATUN_SUCCESS) {
    const std::string error = gatun_last_error(comm);
    gatun_deregister(comm, first_.data());
    return error;
  }
  enrolled_at_ = comm;
  return "";
}

void Workload::set_shape(const Shape& shape, bool in_place) {
  shape_ = shape;
  in_place_ = in_place;
}

unsigned char* Workload::send(int slice) {
  unsigned char* base = (in_place_ ? second_ : first_).data() + static_cast<size_t>(slice) * stride_bytes_;
  if (!in_place_ || shape_.collective != Collective::kAllGather) return base;
  return base + static_cast<uint64_t>(shape_.rank) * shape_.send_elems * elem_bytes(shape_.type);
}

unsigned char* Workload::recv(int slice) {
  unsigned char* base = second_.data() + static_cast<size_t>(slice) * stride_bytes_;
  if (!in_place_ || shape_.collective != Collective::kReduceScatter) return base;
  return base + static_cast<uint64_t>(shape_.rank) * shape_.recv_elems * elem_bytes(shape_.type);
}

size_t Workload::poisoned_bytes() const {
  return std::min<size_t>(stride_bytes_, shape_.bytes() + kPageBytes);
}

void Workload::fill(uint64_t seed) {
  for (int slice = 0; slice < slices_; ++slice) {
    std::memset(second_.data() + static_cast<size_t>(slice) * stride_bytes_, kPoison, poisoned_bytes());
    const Problem problem{shape_.type, shape_.op, Inputs::kBroad, seed + static_cast<uint64_t>(slice), shape_.nranks};
    fill_input(problem, shape_.rank, 0, shape_.send_elems, send(slice));
  }
}

int Workload::start(gatun_comm_t comm, int slice, gatun_request_t* request) {
  const Shape& s = shape_;
  switch (s.collective) {
    case Collective::kAllReduce:
      return gatun_iallreduce(send(slice), recv(slice), s.count, s.type, s.op, comm, nullptr, request);
    case Collective::kReduceScatter:
      return gatun_ireduce_scatter(send(slice), recv(slice), s.count, s.type, s.op, comm, nullptr, request);
    case Collective::kAllGather: return gatun_iallgather(send(slice), recv(slice), s.count, s.type, comm, nullptr, request);
    case Collective::kBroadcast:
      return gatun_ibroadcast(send(slice), recv(slice), s.count, s.type, s.root, comm, nullptr, request);
    case Collective::kReduce:
      return gatun_ireduce(send(slice), recv(slice), s.count, s.type, s.op, s.root, comm, nullptr, request);
    case Collective::kBarrier: break;
  }
  return gatun_ibarrier(comm, nullptr, request);
}

int Workload::call(gatun_comm_t comm) {
  const Shape& s = shape_;
  switch (s.collective) {
    case Collective::kAllReduce: return gatun_allreduce(send(0), recv(0), s.count, s.type, s.op, comm);
    case Collective::kReduceScatter: return gatun_reduce_scatter(send(0), recv(0), s.count, s.type, s.op, comm);
    case Collective::kAllGather: return gatun_allgather(send(0), recv(0), s.count, s.type, comm);
    case Collective::kBroadcast: return gatun_broadcast(send(0), recv(0), s.count, s.type, s.root, comm);
    case Collective::kReduce: return gatun_reduce(send(0), recv(0), s.count, s.type, s.op, s.root, comm);
    case Collective::kBarrier: break;
  }
  return gatun_barrier(comm);
}

std::string Workload::run(gatun_comm_t comm) {
  int code = GATUN_SUCCESS;
  if (slices_ == 1) {
    code = call(comm);
  } else {
    gatun_request_t requests[128] = {};
    for (int i = 0; i < slices_ && code >= 0; ++i) code = start(comm, i, &requests[i]);
    for (int i = 0; i < slices_; ++i) {
      if (requests[i] == nullptr) continue;
      const int end = gatun_wait(&requests[i], -1);
      if (code == GATUN_SUCCESS || code == GATUN_IN_PROGRESS) code = end;
    }
  }
  if (code == GATUN_SUCCESS) return "";
  const char* text = gatun_last_error(comm);
  return text != nullptr && *text != '\0' ? text : gatun_error_string(code);
}

uint64_t Workload::wrong_in_slice(int slice, uint64_t seed) {
  const Shape& s = shape_;
  const Problem problem{s.type, s.op, Inputs::kBroad, seed + static_cast<uint64_t>(slice), s.nranks};
  const size_t size = elem_bytes(s.type);
  std::vector<unsigned char> want(kCheckElems * size);
  uint64_t wrong = 0;
  const auto compare = [&](const unsigned char* got, uint64_t elems, auto&& fill_want) {
    for (uint64_t first = 0; first < elems; first += kCheckElems) {
      const uint64_t count = std::min(kCheckElems, elems - first);
      fill_want(first, count);
      wrong += count_wrong(s.type, got + first * size, want.data(), count);
    }
  };
  const auto expected_from = [&](uint64_t offset) {
    return [&, offset](uint64_t first, uint64_t count) { fill_expected(problem, offset + first, count, want.data()); };
  };
  const auto input_of = [&](int rank) {
    return [&, rank](uint64_t first, uint64_t count) { fill_input(problem, rank, first, count, want.data()); };
  };
  switch (s.collective) {
    case Collective::kAllReduce: compare(recv(slice), s.recv_elems, expected_from(0)); break;
    case Collective::kReduceScatter:
      compare(recv(slice), s.recv_elems, expected_from(static_cast<uint64_t>(s.rank) * s.recv_elems));
      break;
    case Collective::kAllGather:
      for (int rank = 0; rank < s.nranks; ++rank) {
        compare(recv(slice) + static_cast<uint64_t>(rank) * s.send_elems * size, s.send_elems, input_of(rank));
      }
      break;
    case Collective::kBroadcast: compare(recv(slice), s.recv_elems, input_of(s.root)); break;
    case Collective::kReduce:
      if (s.rank == s.root) compare(recv(slice), s.recv_elems, expected_from(0));
      break;
    case Collective::kBarrier: break;
  }
  const unsigned char* long_buffer = second_.data() + static_cast<size_t>(slice) * stride_bytes_;
  const size_t written = in_place_ ? s.bytes() : s.recv_elems * size;
  if (!all_equal(long_buffer + written, poisoned_bytes() - written, kPoison)) ++wrong;
  if (!in_place_) compare(send(slice), s.send_elems, input_of(s.rank));  // the input must not have been written
  return wrong;
}

uint64_t Workload::wrong(uint64_t seed) {
  uint64_t total = 0;
  for (int slice = 0; slice < slices_; ++slice) total += wrong_in_slice(slice, seed);
  return total;
}

bool Workload::guards_intact() const {
  return first_.guards_intact() && second_.guards_intact();
}

}  // namespace gatun::perf
