#include "host/lib/ring.h"

#include <algorithm>
#include <cstring>

#include "protocols/big_endian.h"

namespace gatun {
namespace {

constexpr uint32_t kLabelSame = 1, kLabelHandover = 2;
constexpr size_t kAnewBytes = 4 << 20;  // reduced anew at a time

}  // namespace

Result<std::unique_ptr<Ring>> Ring::make(std::unique_ptr<MeshListener> listener, uint32_t rank,
                                         const std::vector<std::string>& cards, const std::string& fallback,
                                         TimeNs deadline, std::string* note) {
  std::vector<MeshCard> decoded;
  for (const std::string& text : cards) {
    Result<MeshCard> card = MeshCard::decode(text);
    if (!card.ok()) return card.status();
    decoded.push_back(std::move(card.value()));
  }
  Result<std::unique_ptr<Mesh>> mesh = Mesh::connect(std::move(listener), rank, std::move(decoded), deadline);
  if (!mesh.ok()) return mesh.status();
  std::unique_ptr<Ring> ring(new Ring(std::move(mesh.value()), nullptr));
  bool gloo = false;
  if (fallback == "ring") {
    Result<std::unique_ptr<Engine>> engine = make_gloo_engine(ring->mesh_.get());
    gloo = engine.ok();
    if (gloo) ring->engine_ = std::move(engine.value());
    if (!gloo) *note = std::string("without the switch ranks exchange directly: ") + engine.status().message();
  }
  // A rank without Gloo must not wait in a direct exchange for ranks that run Gloo's ring.
  Result<bool> same = ring->all_same(gloo ? 1 : 2, deadline);
  if (!same.ok()) return same.status();
  if (!same.value()) *note = "without the switch ranks exchange directly, since Gloo is not there on all of them";
  ring->exact_ = !same.value() || !gloo;
  if (ring->exact_) ring->engine_ = make_exact_engine(ring->mesh_.get(), {});
  return ring;
}

Result<bool> Ring::all_same(uint32_t number, TimeNs deadline) {
  const uint32_t ranks = mesh_->ranks(), rank = mesh_->rank();
  std::vector<std::byte> mine(4), theirs(size_t{4} * ranks);
  put32(mine.data(), number);
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    mesh_->post_send(r, mine.data(), 4, kLabelSame);
    mesh_->post_receive(r, theirs.data() + 4 * r, 4, kLabelSame);
  }
  if (Status status = mesh_->wait_all(deadline); !status.ok()) return status;
  bool same = true;
  for (uint32_t r = 0; r < ranks; ++r) same &= r == rank || take32(theirs.data() + 4 * r) == number;
  return same;
}

Status Ring::run(const Request& request) {
  return engine_->run(request.contract, request.send, request.recv, request.deadline);
}

Status Ring::recover(const RecoveryPlan& plan, Datapath& datapath, TimeNs deadline) {
  if (Status status = hand_over(plan, datapath, deadline); !status.ok()) return status;
  for (uint32_t op = plan.begin_op(); op != plan.end_op(); ++op) {
    if (plan.fate(op) != RecoveryPlan::Fate::kFinish) continue;
    if (Status status = reduce_anew(plan, op, datapath, deadline); !status.ok()) return status;
  }
  return {};
}

Status Ring::hand_over(const RecoveryPlan& plan, Datapath& datapath, TimeNs deadline) {
  const uint32_t rank = mesh_->rank();
  const auto takes = [&](const RecoveryPlan::Handover& h) { return (h.lacking >> rank & 1) != 0; };
  size_t bytes = 0;
  for (const RecoveryPlan::Handover& h : plan.handovers()) {
    if (takes(h)) bytes += datapath.operation(h.op).piece(h.index).bytes;
  }
  std::vector<std::byte> taken(bytes);
  size_t at = 0;
  for (const RecoveryPlan::Handover& h : plan.handovers()) {
    const uint32_t size = datapath.operation(h.op).piece(h.index).bytes;
    if (takes(h)) {
      mesh_->post_receive(h.holder, taken.data() + at, size, kLabelHandover);
      at += size;
    }
    if (h.holder != rank) continue;
    std::span<const std::byte> payload;
    // An answer of nothing but headers (no elements) has no bytes to hand over.
    if (size > 0 && (!datapath.retained(h.op, h.index, &payload) || payload.size() != size)) {
      return {Code::kInternal, "an answer of operation " + std::to_string(h.op) + " that other ranks lack is not kept here"};
    }
    for (uint32_t r = 0; r < mesh_->ranks(); ++r) {
      if (h.lacking >> r & 1) mesh_->post_send(r, payload.data(), size, kLabelHandover);
    }
  }
  if (Status status = mesh_->wait_all(deadline); !status.ok()) return status;
  at = 0;
  for (const RecoveryPlan::Handover& h : plan.handovers()) {
    if (!takes(h)) continue;
    datapath.deliver(h.op, h.index, taken.data() + at);
    at += datapath.operation(h.op).piece(h.index).bytes;
  }
  return {};
}

// The chunks that nobody holds, packed together, as many at a time as a few megabytes hold. Their inputs are in place.
Status Ring::reduce_anew(const RecoveryPlan& plan, uint32_t op, Datapath& datapath, TimeNs deadline) {
  const Operation& operation = datapath.operation(op);
  std::vector<std::byte> packed;
  std::vector<uint64_t> indices;
  const auto flush = [&]() -> Status {
    if (packed.empty()) return {};
    const Contract contract{.collective = Collective::kAllReduce,
                            .type = operation.wire_type(),
                            .op = operation.wire_op(),
                            .count = packed.size() / elem_bytes(operation.wire_type())};
    if (Status status = engine_->run(contract, packed.data(), packed.data(), deadline); !status.ok()) return status;
    size_t at = 0;
    for (const uint64_t index : indices) {
      datapath.deliver(op, index, packed.data() + at);
      at += operation.piece(index).bytes;
    }
    packed.clear();
    indices.clear();
    return {};
  };
  for (uint64_t index = 0; index < plan.chunks(op); ++index) {
    if (!plan.reduce_anew(op, index)) continue;
    const Operation::Piece piece = operation.piece(index);
    const size_t at = packed.size();
    packed.resize(at + piece.bytes);  // zeros: what a rank adds to a copy that is not its own
    if (piece.source) std::memcpy(packed.data() + at, piece.source, piece.bytes);
    indices.push_back(index);
    if (packed.size() < kAnewBytes) continue;
    if (Status status = flush(); !status.ok()) return status;
  }
  return flush();
}

std::vector<std::string> Ring::names() const {
  std::vector<std::string> names;
  for (uint32_t r = 0; r < mesh_->ranks(); ++r) names.push_back(mesh_->card(r).text(r));
  return names;
}

}  // namespace gatun
