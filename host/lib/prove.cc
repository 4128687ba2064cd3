// The probe of the data paths (attach.h): full-size packets until every tree has answered; if some do not, small ones, to
// tell a path that carries nothing from one that only carries less than its interface says.
#include <algorithm>
#include <array>

#include "host/lib/attach.h"
#include "protocols/big_endian.h"
#include "protocols/wire.h"

namespace gatun {
namespace {

constexpr TimeNs kProbeRetry = 50 * kMs;
constexpr uint32_t kSmallBytes = 64;
constexpr TimeNs kSmallPatience = 1 * kSecond;

class Prober {
 public:
  Prober(const control::Admit& admit, const Attachment& attachment, uint32_t payload_bytes)
      : admit_(admit), attachment_(attachment), payload_(payload_bytes), proven_(admit.trees.size()) {
    put64(payload_.data(), admit.token);
  }

  // True when every tree has answered within the time.
  bool run(TimeNs patience, const std::atomic<bool>* stop) {
    const TimeNs deadline = now_ns() + patience;
    TimeNs retry = 0;
    while (missing() < proven_.size()) {
      const TimeNs now = now_ns();
      if (now >= deadline || (stop && stop->load())) return false;
      if (now >= retry) {
        send();
        retry = now + kProbeRetry;
      }
      if (!receive()) attachment_.waiter->wait(std::min(retry, deadline) - now);
    }
    return true;
  }

  // The first tree without an answer.
  size_t missing() const { return static_cast<size_t>(std::find(proven_.begin(), proven_.end(), false) - proven_.begin()); }

 private:
  void send() {
    for (size_t i = 0; i < proven_.size(); ++i) {
      if (proven_[i]) continue;
      const Datapath::TreePath& path = attachment_.trees[i];
      TxPacket packet{
          .payload = payload_.data(), .payload_bytes = static_cast<uint32_t>(payload_.size()), .peer = path.peer};
      const Header header{
          .type = PacketType::kProbe, .tree = static_cast<uint8_t>(i), .child = path.child, .job = admit_.job};
      encode(header, packet.payload, packet.payload_bytes, !attachment_.intact, packet.head);
      attachment_.links[path.link]->send(std::span(&packet, 1));
    }
  }

  bool receive() {
    bool any = false;
    std::array<RxPacket, kBurst> packets;
    for (uint32_t link = 0; link < attachment_.links.size(); ++link) {
      const int count = attachment_.links[link]->receive(packets);
      for (int i = 0; i < count; ++i) {
        const RxPacket& packet = packets[static_cast<size_t>(i)];
        any = true;
        Header header;
        if (decode(packet.head, packet.payload, packet.payload_bytes, packet.checksummed, &header) == Decode::kOk &&
            header.type == PacketType::kProbeReply && header.job == admit_.job && header.tree < proven_.size() &&
            attachment_.trees[header.tree].link == link && packet.payload_bytes == payload_.size() &&
            std::equal(payload_.begin(), payload_.end(), packet.payload)) {
          proven_[header.tree] = true;
        }
        if (packet.buffer != kNoBuffer) attachment_.links[link]->release(std::span(&packet.buffer, 1));
      }
    }
    return any;
  }

  const control::Admit& admit_;
  const Attachment& attachment_;
  std::vector<std::byte> payload_;
  std::vector<bool> proven_;
};

}  // namespace

Status prove(const control::Admit& admit, const Attachment& attachment, TimeNs patience, const std::atomic<bool>* stop) {
  Prober full(admit, attachment, std::max(admit.payload_bytes, kSmallBytes));
  if (full.run(patience, stop)) return {};
  const size_t tree = full.missing();
  const uint32_t link = attachment.trees[tree].link;
  const std::string path = attachment.names[link];
  std::string text = "no answer on the data path from " + path + " (tree " + std::to_string(tree) + ")";
  if (stop && stop->load()) return {Code::kAborted, text + " before the join was called off"};
  const uint32_t bytes = admit.payload_bytes + static_cast<uint32_t>(kHeaderBytes);
  Prober small(admit, attachment, kSmallBytes);
  if (small.run(kSmallPatience, stop) || small.missing() > tree) {
    return {Code::kSwitchLost, "packets of " + std::to_string(bytes) + " bytes do not pass from " + path +
                                   ", small ones do: the path's MTU is smaller than this host's; correct the MTU, or set a "
                                   "smaller GATUN_PAYLOAD on all ranks"};
  }
  const Status health = attachment.links[link]->health();
  if (!health.ok()) return {Code::kTimeout, text + ": " + health.message()};
  return {Code::kTimeout, text + ", although the control channel works: let UDP through on every firewall between them"};
}

}  // namespace gatun
