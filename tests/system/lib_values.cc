#include "tests/system/lib_values.h"

#include <algorithm>

#include "tests/sim/rng.h"

namespace gatun {
namespace {

constexpr std::byte kUntouched{0x5a};

size_t send_elems(const Case& c, int ranks) {
  return c.count * (c.collective == Collective::kReduceScatter ? ranks : 1);
}
size_t recv_elems(const Case& c, int ranks) {
  return c.count * (c.collective == Collective::kAllGather ? ranks : 1);
}
size_t buffer_elems(const Case& c, int ranks) {
  return c.in_place ? std::max(send_elems(c, ranks), recv_elems(c, ranks)) : 0;
}

}  // namespace

float rough_value(int rank, uint64_t i, uint64_t salt) {
  const uint64_t bits = sim::mix(salt ^ sim::mix(i) ^ sim::mix(~static_cast<uint64_t>(rank)));
  return static_cast<float>(static_cast<int64_t>(bits) >> 40) * 0x1p-23f;
}

std::string text(const Case& c) {
  return std::string(name(c.collective)) + " " + name(c.type) + " " + name(c.op) + " count " + std::to_string(c.count) +
         " root " + std::to_string(c.root) + (c.in_place ? " in place" : "") + " misaligned by " +
         std::to_string(c.misalign) + (c.rough == Rough::kNo ? "" : " rough");
}

Case random_case(std::mt19937_64& random, int ranks, uint64_t count_max) {
  return {.collective = static_cast<Collective>(random() % kCollectives),
          .type = static_cast<Type>(random() % kTypes),
          .op = static_cast<Op>(random() % kOps),
          .count = random() % 8 == 0 ? random() % 3 : random() % count_max,
          .root = static_cast<int>(random() % static_cast<uint64_t>(ranks)),
          .in_place = random() % 2 == 0,
          .misalign = random() % 9,
          .salt = random()};
}

Exercise::Exercise(const Case& c, int rank, int ranks)
    : case_(c),
      rank_(rank),
      ranks_(ranks),
      elem_(elem_bytes(c.type)),
      send_(c.in_place ? 0 : send_elems(c, ranks) * elem_, c.misalign),
      recv_((c.in_place ? buffer_elems(c, ranks) : recv_elems(c, ranks)) * elem_, (c.misalign * 3) % 16) {
  std::fill_n(recv_.data(), recv_.size(), kUntouched);
  fill(const_cast<std::byte*>(send()), 0, send_elems(c, ranks), rank);
}

// NCCL's rule: a reduce-scatter's result, an all-gather's input, lies at the rank's segment of the large buffer.
const std::byte* Exercise::in_place_send() {
  return recv_.data() + (case_.collective == Collective::kAllGather ? static_cast<size_t>(rank_) * case_.count * elem_ : 0);
}

void Exercise::fill(std::byte* at, uint64_t first, uint64_t count, int rank) {
  for (uint64_t i = 0; i < count; ++i) {
    const bool rough = case_.rough != Rough::kNo;
    put_element(at + i * elem_, case_.type,
                rough ? rough_value(rank, first + i, case_.salt) : input_value(rank, ranks_, first + i, case_.salt));
  }
}

int Exercise::run(gatun_comm_t comm) {
  const auto type = static_cast<gatun_type_t>(case_.type);
  const auto op = static_cast<gatun_op_t>(case_.op);
  std::byte* recv = recv_.data();
  switch (case_.collective) {
    case Collective::kAllReduce: return gatun_allreduce(send(), recv, case_.count, type, op, comm);
    case Collective::kReduceScatter:
      if (case_.in_place) recv += static_cast<size_t>(rank_) * case_.count * elem_;
      return gatun_reduce_scatter(send(), recv, case_.count, type, op, comm);
    case Collective::kAllGather: return gatun_allgather(send(), recv, case_.count, type, comm);
    case Collective::kBroadcast: return gatun_broadcast(send(), recv, case_.count, type, case_.root, comm);
    case Collective::kReduce: return gatun_reduce(send(), recv, case_.count, type, op, case_.root, comm);
    case Collective::kBarrier: return gatun_barrier(comm);
  }
  return GATUN_INTERNAL;
}

int Exercise::start(gatun_comm_t comm, const gatun_call_t* call, gatun_request_t* request) {
  const auto type = static_cast<gatun_type_t>(case_.type);
  const auto op = static_cast<gatun_op_t>(case_.op);
  std::byte* recv = recv_.data();
  switch (case_.collective) {
    case Collective::kAllReduce: return gatun_iallreduce(send(), recv, case_.count, type, op, comm, call, request);
    case Collective::kReduceScatter:
      if (case_.in_place) recv += static_cast<size_t>(rank_) * case_.count * elem_;
      return gatun_ireduce_scatter(send(), recv, case_.count, type, op, comm, call, request);
    case Collective::kAllGather: return gatun_iallgather(send(), recv, case_.count, type, comm, call, request);
    case Collective::kBroadcast: return gatun_ibroadcast(send(), recv, case_.count, type, case_.root, comm, call, request);
    case Collective::kReduce: return gatun_ireduce(send(), recv, case_.count, type, op, case_.root, comm, call, request);
    case Collective::kBarrier: return gatun_ibarrier(comm, call, request);
  }
  return GATUN_INTERNAL;
}

std::string Exercise::verify() {
  if (!send_.intact() || !recv_.intact()) return text(case_) + ": bytes beside a buffer were written";
  if (case_.collective == Collective::kBarrier) return "";
  if (case_.rough != Rough::kNo) return verify_rough();
  if (case_.collective == Collective::kReduce && rank_ != case_.root) return case_.in_place ? "" : untouched();
  uint64_t first = 0;  // of the receive buffer, in the numbering of the reduced array
  size_t at = 0;
  if (case_.collective == Collective::kReduceScatter) {
    first = static_cast<uint64_t>(rank_) * case_.count;
    if (case_.in_place) at = first * elem_;
  }
  const uint64_t count = recv_elems(case_, ranks_);
  std::byte expected[8];
  for (uint64_t i = 0; i < count; ++i) {
    double value = 0;
    if (case_.collective == Collective::kAllGather) {
      value = input_value(static_cast<int>(i / case_.count), ranks_, i % case_.count, case_.salt);
    } else if (case_.collective == Collective::kBroadcast) {
      value = input_value(case_.root, ranks_, i, case_.salt);
    } else {
      value = reduced_value(ranks_, first + i, case_.salt, case_.op);
    }
    put_element(expected, case_.type, value);
    if (std::memcmp(expected, recv_.data() + at + i * elem_, elem_) != 0) {
      return text(case_) + ": element " + std::to_string(i) + " is wrong";
    }
  }
  return "";
}

std::string Exercise::verify_rough() {
  for (uint64_t i = 0; i < case_.count; ++i) {
    float sum = rough_value(0, i, case_.salt), got = 0;
    for (int rank = 1; rank < ranks_; ++rank) sum += rough_value(rank, i, case_.salt);
    std::memcpy(&got, recv_.data() + i * elem_, elem_);
    // Each addition rounds by at most half a unit in the last place of a number below `ranks`.
    const float apart = case_.rough == Rough::kExact ? 0 : 0x1p-24f * static_cast<float>(ranks_ * ranks_);
    if (!(std::fabs(got - sum) <= apart)) return text(case_) + ": element " + std::to_string(i) + " is wrong";
  }
  return "";
}

uint64_t Exercise::digest() {
  const Collective c = case_.collective;
  if (c != Collective::kAllReduce && c != Collective::kAllGather && c != Collective::kBroadcast) return 0;
  uint64_t digest = 0;
  for (size_t i = 0; i < recv_.size(); ++i) digest = (digest ^ static_cast<uint64_t>(recv_.data()[i])) * 0x100000001b3u;
  return digest;
}

std::string Exercise::untouched() {
  if (!send_.intact() || !recv_.intact()) return text(case_) + ": bytes beside a buffer were written";
  if (case_.in_place) return "";
  const bool same = std::all_of(recv_.data(), recv_.data() + recv_.size(), [](std::byte b) { return b == kUntouched; });
  return same ? "" : text(case_) + ": the receive buffer was written";
}

}  // namespace gatun
