// Any packets from anybody into a Node with four trees: roots, an inner switch, one child, 64 children.
//
// Checked after every packet: each buffer comes back exactly once and is not read afterwards (it is freed at once, and the
// address sanitizer watches), what is sent goes to a known peer and decodes, and no more is held than the banks allow.

#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "protocols/status.h"
#include "switch_model/node.h"
#include "tests/fuzz/fuzz.h"

namespace gatun::fuzz {
namespace {

constexpr PeerId kParent = 900;
constexpr uint64_t kToken = 0x0123456789abcdef;
constexpr uint32_t kFirstSeq = 0xfffffff8;  // wraps soon

struct TreeShape {
  uint32_t job;
  uint8_t tree;
  uint32_t children, window, payload_bytes;
  bool root;
};
constexpr std::array<TreeShape, 4> kShapes = {{
    {0x12345400, 0, 3, 4, 64, true},
    {0x12345400, 1, 2, 4, 128, false},
    {0x7fffffff, 0, 64, 1, 64, true},
    {0x7fffffff, 3, 1, 2, 72, true},
}};

enum Step : uint8_t { kRaw, kCrafted, kAll, kReadmit, kMove, kSteps };

class Harness {
 public:
  Harness() : outbox_(std::make_unique<Outbox>()), base_{kFirstSeq, kFirstSeq, kFirstSeq, kFirstSeq} {
    for (size_t i = 0; i < kShapes.size(); ++i) admit(i);
  }
  ~Harness() {
    for (size_t i = 0; i < kShapes.size(); ++i) remove(i);
    GATUN_CHECK(held_.empty());
    GATUN_CHECK(node_.trees() == 0);
  }

  void step(Input& input) {
    switch (input.below(kSteps)) {
      case kRaw: return raw(input);
      case kCrafted: return crafted(input);
      case kAll: return everybody(input);
      case kMove: {
        const uint32_t tree = input.below(kShapes.size());
        base_[tree] += static_cast<uint32_t>(static_cast<int8_t>(input.u8()));
        return;
      }
      case kReadmit: {
        const uint32_t tree = input.below(kShapes.size());
        remove(tree);
        admit(tree);
        return;
      }
    }
  }

 private:
  static PeerId peer_of(size_t tree, uint32_t child) { return static_cast<PeerId>(tree * 100 + child); }
  static bool known(PeerId peer) { return peer == kParent || (peer / 100 < kShapes.size() && peer % 100 < 64); }

  void admit(size_t i) {
    const TreeShape& shape = kShapes[i];
    TreeSpec spec{.job = shape.job,
                  .token = kToken,
                  .tree = shape.tree,
                  .window = shape.window,
                  .payload_bytes = shape.payload_bytes,
                  .root = shape.root};
    for (uint32_t c = 0; c < shape.children; ++c) spec.child_ranks.push_back({static_cast<uint16_t>(c)});
    if (!shape.root) spec.parent = kParent;
    arenas_[i] = std::make_unique<std::byte[]>(spec.arena_bytes());
    GATUN_CHECK(node_.admit(spec, {arenas_[i].get(), spec.arena_bytes()}).ok());
    for (uint32_t c = 0; c < shape.children; ++c) probe(i, c, kToken, peer_of(i, c));
  }

  void remove(size_t i) {
    bool more = true;
    while (more) {
      more = node_.remove(kShapes[i].job, kShapes[i].tree, outbox_.get());
      take_outbox();
    }
    arenas_[i].reset();
  }

  void probe(size_t i, uint32_t child, uint64_t token, PeerId peer) {
    std::array<std::byte, 24> payload{};
    for (size_t b = 0; b < 8; ++b) payload[b] = static_cast<std::byte>(token >> (56 - 8 * b));
    Header header{
        .type = PacketType::kProbe, .tree = kShapes[i].tree, .child = static_cast<uint8_t>(child), .job = kShapes[i].job};
    deliver(header, payload.data(), payload.size(), peer, true, false);
  }

  // Any bytes as they come from the wire.
  void raw(Input& input) {
    const PeerId peer = input.bit() ? kNoPeer : peer_of(input.below(4), input.below(64));
    const bool checksummed = input.bit();
    const size_t size = kHeaderBytes + input.u16() % 300;
    auto bytes = std::make_unique<std::byte[]>(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = std::byte{input.u8()};
    give(std::move(bytes), static_cast<uint32_t>(size - kHeaderBytes), peer, checksummed, input.bit());
  }

  // A packet that gets past the decoder, with fields near the ones that are expected.
  void crafted(Input& input) {
    const uint32_t i = input.below(kShapes.size());
    Header header{.type = static_cast<PacketType>(1 + input.below(5)),
                  .flags = static_cast<uint8_t>(input.u8() & kFlagsKnown),
                  .tree = kShapes[i].tree,
                  .child = static_cast<uint8_t>(input.below(kShapes[i].children + 1) % 64),
                  .job = kShapes[i].job,
                  .seq = base_[i] + input.below(3 * kShapes[i].window)};
    header.contract = input.below(3);
    header.op = static_cast<uint16_t>(input.below(3));
    header.contributors = input.u8();
    header.elems = input.u8();
    header.elem_type = static_cast<Type>(input.below(kTypes));
    header.reduce_op = static_cast<Op>(input.below(kOps));
    PeerId peer =
        header.type == PacketType::kResult || header.type == PacketType::kStatus ? kParent : peer_of(i, header.child);
    if (input.below(8) == 7) peer = peer_of(input.below(4), input.below(64));
    size_t size = 2 * input.below(100);
    if (header.type == PacketType::kData || header.type == PacketType::kResult) {
      const bool none = header.flags & (kFlagEmpty | kFlagRefused);
      const Type type = header.flags & kFlagPartial ? partial_type(header.elem_type) : header.elem_type;
      size = none ? 0 : header.elems * elem_bytes(type);
    }
    std::vector<std::byte> payload(size, std::byte{input.u8()});
    if (header.type == PacketType::kProbe && size >= 8 && input.bit()) return probe(i, header.child, kToken, peer);
    deliver(header, payload.data(), size, peer, input.bit(), input.bit());
  }

  // All children contribute one chunk as they should, and at the inner switch the parent answers it.
  void everybody(Input& input) {
    const uint32_t i = input.below(kShapes.size());
    const TreeShape& shape = kShapes[i];
    const Type type = static_cast<Type>(input.below(kTypes));
    Header header{.type = PacketType::kData,
                  .tree = shape.tree,
                  .job = shape.job,
                  .seq = base_[i] + input.below(shape.window),
                  .contract = 7,
                  .contributors = 1,
                  .elem_type = type,
                  .reduce_op = static_cast<Op>(input.below(kOps))};
    header.elems = 1 + input.below(16);
    const size_t size = header.elems * elem_bytes(type);
    std::vector<std::byte> payload(size, std::byte{input.u8()});
    for (uint32_t c = 0; c < shape.children; ++c) {
      header.child = static_cast<uint8_t>(c);
      deliver(header, payload.data(), size, peer_of(i, c), c & 1, false);
    }
    if (shape.root) return;
    header.type = PacketType::kResult;
    header.child = 0;
    deliver(header, payload.data(), size, kParent, true, input.bit());
  }

  void deliver(const Header& header, const std::byte* payload, size_t size, PeerId peer, bool checksummed, bool congested) {
    auto bytes = std::make_unique<std::byte[]>(kHeaderBytes + size);
    if (size > 0) std::memcpy(bytes.get() + kHeaderBytes, payload, size);
    encode(header, bytes.get() + kHeaderBytes, static_cast<uint32_t>(size), checksummed, bytes.get());
    give(std::move(bytes), static_cast<uint32_t>(size), peer, checksummed, congested);
  }

  void give(std::unique_ptr<std::byte[]> bytes, uint32_t payload_bytes, PeerId peer, bool checksummed, bool congested) {
    const BufferId buffer = next_buffer_++;
    const RxPacket packet{.head = bytes.get(),
                          .payload = bytes.get() + kHeaderBytes,
                          .payload_bytes = payload_bytes,
                          .peer = peer,
                          .buffer = buffer,
                          .congested = congested,
                          .checksummed = checksummed};
    held_[buffer] = std::move(bytes);
    (void)node_.accepts_probe(packet);
    node_.on_packet(packet, now_ += kUs, outbox_.get());
    take_outbox();
    size_t most = 0;
    for (const TreeShape& shape : kShapes) most += size_t{2} * shape.window * shape.children;
    GATUN_CHECK(held_.size() <= most);
  }

  void take_outbox() {
    for (const TxPacket& packet : outbox_->sends()) {
      GATUN_CHECK(known(packet.peer) && packet.payload_bytes < 1024);
      // Copied into a block of its own size: reading it shows whether all of it was there.
      std::vector<std::byte> payload(packet.payload, packet.payload + packet.payload_bytes);
      Header header;
      GATUN_CHECK(decode(packet.head, payload.data(), packet.payload_bytes, false, &header) == Decode::kOk);
    }
    for (const BufferId buffer : outbox_->releases()) GATUN_CHECK(held_.erase(buffer) == 1);
    outbox_->clear();
  }

  Node node_{kShapes.size()};
  std::unique_ptr<Outbox> outbox_;
  std::array<std::unique_ptr<std::byte[]>, kShapes.size()> arenas_;
  std::array<uint32_t, kShapes.size()> base_;
  std::map<BufferId, std::unique_ptr<std::byte[]>> held_;
  BufferId next_buffer_ = 0;
  TimeNs now_ = 0;
};

Bytes random_bytes(uint64_t state, size_t size) {
  Bytes bytes(size);
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  return bytes;
}

}  // namespace

std::vector<std::pair<std::string, Bytes>> seeds() {
  Bytes complete, crafted;
  for (uint8_t tree = 0; tree < kShapes.size(); ++tree) {
    for (uint8_t chunk = 0; chunk < 6; ++chunk) {
      // Step, tree, type, chunk, operator, elements, fill, mark; then the window moves on.
      const uint8_t step[] = {
          kAll, tree, static_cast<uint8_t>((tree + chunk) % kTypes), 0, static_cast<uint8_t>(chunk % kOps), 5, 0x3f, 0};
      complete.insert(complete.end(), step, std::end(step) - (kShapes[tree].root ? 1 : 0));
      const uint8_t move[] = {kMove, tree, 1};
      complete.insert(complete.end(), move, std::end(move));
    }
    for (uint8_t child = 0; child < 3; ++child) {
      // Step, tree, packet type - 1, flags, child, chunk, contract, op, contributors, elements, type, operator, ...
      const uint8_t step[] = {kCrafted, tree, 0, 0, child, child, static_cast<uint8_t>(child / 2), 0, 1, 4, 7,
                              0,        0,    0, 9, 1,     0};
      crafted.insert(crafted.end(), step, std::end(step));
    }
    const uint8_t readmit[] = {kReadmit, tree};
    crafted.insert(crafted.end(), readmit, std::end(readmit));
  }
  Bytes raw = {kRaw, 0, 1, 0, 0x2c, 0x01};
  const Bytes noise = random_bytes(1, 340);
  raw.insert(raw.end(), noise.begin(), noise.end());
  return {{"complete", complete}, {"crafted", crafted}, {"raw", raw}, {"noise", random_bytes(2, 1024)}};
}

}  // namespace gatun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gatun::fuzz::Input input(data, size);
  gatun::fuzz::Harness harness;
  for (int steps = 0; !input.empty() && steps < 400; ++steps) harness.step(input);
  return 0;
}
