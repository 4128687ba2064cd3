#include "host/fallback/mesh.h"

#include "host/fallback/mesh_bulk.h"
#include "host/fallback/mesh_connect.h"
#include "host/fallback/mesh_messages.h"

namespace gatun {
namespace {

std::vector<std::string> texts_of(const std::vector<MeshCard>& cards) {
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < cards.size(); ++i) texts.push_back(cards[i].text(i));
  return texts;
}

}  // namespace

class Mesh::Impl {
 public:
  Impl(uint32_t own, std::vector<MeshCard> all, MeshConnections connections)
      : rank(own),
        cards(std::move(all)),
        bulk(own, std::move(connections.bulk), texts_of(cards)),
        messenger(std::move(connections.messages)) {}

  const uint32_t rank;
  const std::vector<MeshCard> cards;
  Bulk bulk;
  Messenger messenger;
};

Result<std::unique_ptr<Mesh>> Mesh::connect(std::unique_ptr<MeshListener> listener, uint32_t rank,
                                            std::vector<MeshCard> cards, TimeNs deadline) {
  GATUN_CHECK(listener != nullptr && rank < cards.size() && cards.size() < kMeshRanksMax);
  Result<MeshConnections> connections = connect_mesh(*listener, rank, cards, deadline);
  if (!connections.ok()) return connections.status();
  auto impl = std::make_unique<Impl>(rank, std::move(cards), std::move(connections.value()));
  return std::unique_ptr<Mesh>(new Mesh(std::move(impl)));
}

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mesh::~Mesh() = default;

void Mesh::run(Events* events) {
  impl_->messenger.run(events);
}

void Mesh::stop() {
  impl_->messenger.stop();
}

void Mesh::send(uint32_t rank, std::vector<std::byte> message) {
  impl_->messenger.send(rank, message);
}

void Mesh::send_all(const std::vector<std::byte>& message) {
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if (rank != impl_->rank) impl_->messenger.send(rank, message);
  }
}

uint32_t Mesh::rank() const {
  return impl_->rank;
}

uint32_t Mesh::ranks() const {
  return static_cast<uint32_t>(impl_->cards.size());
}

const MeshCard& Mesh::card(uint32_t rank) const {
  return impl_->cards[rank];
}

BulkStreams::Ticket Mesh::post_send(uint32_t rank, const void* data, size_t bytes, uint32_t label) {
  return impl_->bulk.post_send(rank, data, bytes, label);
}

BulkStreams::Ticket Mesh::post_receive(uint32_t rank, void* data, size_t bytes, uint32_t label) {
  return impl_->bulk.post_receive(rank, data, bytes, label);
}

Status Mesh::wait(Ticket ticket, TimeNs deadline) {
  return impl_->bulk.wait(ticket, deadline);
}

Status Mesh::wait_all(TimeNs deadline) {
  return impl_->bulk.wait_all(deadline);
}

bool Mesh::done(Ticket ticket) const {
  return impl_->bulk.done(ticket);
}

void Mesh::interrupt(Status reason) {
  impl_->bulk.interrupt(std::move(reason));
}

uint64_t Mesh::bulk_bytes_sent() const {
  return impl_->bulk.bytes_sent();
}

uint64_t Mesh::bulk_bytes_received() const {
  return impl_->bulk.bytes_received();
}

}  // namespace gatun
