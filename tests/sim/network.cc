#include "tests/sim/network.h"

#include <algorithm>
#include <cstring>

namespace gatun::sim {
namespace {

constexpr std::byte kPoison{0xdb};

const char* name(PacketType type) {
  switch (type) {
    case PacketType::kData: return "data";
    case PacketType::kResult: return "result";
    case PacketType::kStatus: return "status";
    case PacketType::kProbe: return "probe";
    case PacketType::kProbeReply: return "probe reply";
  }
  return "?";
}

uint64_t word(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

Network::Network(World& world) : world_(world), links_at_(kEndpoints * kEndpoints, -1) {
  links_.reserve(256);
  history_.reserve(kHistory);
}

uint32_t Network::take() {
  if (unused_.empty()) {
    const auto first = static_cast<uint32_t>(blocks_.size()) * kBlock;
    blocks_.push_back(std::make_unique_for_overwrite<Packet[]>(kBlock));
    for (uint32_t i = kBlock; i-- > 0;) {
      blocks_.back()[i].in_use = false;
      unused_.push_back(first + i);
    }
  }
  const uint32_t index = unused_.back();
  unused_.pop_back();
  packet(index).in_use = true;
  ++in_use_;
  return index;
}

// Poisoned, so that whoever still reads it computes a wrong sum.
void Network::free(uint32_t index) {
  Packet& p = packet(index);
  if (!p.in_use) {
    world_.fail("buffers", "a receive buffer was given back twice");
    return;
  }
  p.in_use = false;
  p.head.fill(kPoison);
  p.data.fill(kPoison);
  unused_.push_back(index);
  --in_use_;
}

Stream Network::draw(Draw subsystem, const Link& link) const {
  return {world_.plan.seed, subsystem, link.from * uint64_t{kEndpoints} + link.to, link.packets};
}

void Network::connect(uint32_t a, uint32_t b, Path path) {
  for (int way = 0; way < 2; ++way, std::swap(a, b)) {
    int index = link_index(a, b);
    if (index < 0) {
      index = static_cast<int>(links_.size());
      links_at_[a * kEndpoints + b] = static_cast<int16_t>(index);
      Stream random(world_.plan.seed, Draw::kLink, a * uint64_t{kEndpoints} + b);
      const auto low = static_cast<uint64_t>(world_.plan.delay_min), high = static_cast<uint64_t>(world_.plan.delay_max);
      links_.push_back({.from = a, .to = b, .delay = static_cast<TimeNs>(random.log_between(low, high))});
    }
    links_[static_cast<size_t>(index)].path = path;
  }
}

TimeNs Network::delay_max(uint32_t from, uint32_t to) const {
  const int index = link_index(from, to);
  return index < 0 ? 0 : links_[static_cast<size_t>(index)].delay * 5 / 4 + 1;
}

bool Network::cut(const Link& link) const {
  for (const Cut& cut : world_.plan.cuts) {
    const bool to = cut.to == link.to || (cut.to == kEndpoints && link.to < kSwitches);
    if (cut.from == link.from && to && world_.now >= cut.at && world_.now < cut.until) return true;
  }
  return false;
}

void Network::send(uint32_t from, uint32_t to, const TxPacket& tx) {
  ++sent_;
  const int index = link_index(from, to);
  if (index < 0) {
    world_.fail("addresses", "a packet from %u to %u, which have nothing to do with each other", from, to);
    return;
  }
  Link& link = links_[static_cast<size_t>(index)];
  ++link.packets;
  world_.hash_in(static_cast<uint64_t>(world_.now) << 16 ^ from << 8 ^ to);
  for (size_t i = 0; i < kHeaderBytes; i += 8) world_.hash_in(word(tx.head + i));

  const uint32_t first = take();
  Packet& p = packet(first);
  fill(p, link, tx);
  if (losing_ && from == lose_from_) {
    Header header;
    if (decode(tx.head, tx.payload, tx.payload_bytes, false, &header) == Decode::kOk && header.type == PacketType::kData &&
        header.job == lose_job_ && header.tree == lose_tree_ && header.seq == lose_seq_) {
      losing_ = false;
      lost_at_ = world_.now;
      if (world_.trace) trace("lost for the exam", p);
      return free(first);
    }
  }
  const bool faulty = !world_.healed() && link.path != Path::kShared;
  if (!faulty) {
    if (world_.trace) trace("sent", p);
    return launch(link, first, {});
  }
  remember(link, p);
  const Fate fate = draw_fate(link);
  if (fate.twice) {
    const uint32_t second = take();
    Packet& copy = packet(second);
    fill(copy, link, tx);
    Fate again = fate;
    again.in_order = false;
    again.extra += static_cast<TimeNs>(draw(Draw::kDuplicate, link).next() % static_cast<uint64_t>(4 * link.delay + 1));
    launch(link, second, again);
  }
  forge(link, p);
  replay(link);
  if (fate.lost) {
    if (world_.trace) trace("lost", p);
    return free(first);
  }
  damage(link, p);
  if (world_.trace) trace(fate.in_order ? "sent" : "sent, out of order", p);
  launch(link, first, fate);
}

void Network::fill(Packet& p, const Link& link, const TxPacket& tx) {
  std::memcpy(p.head.data(), tx.head, kHeaderBytes);
  p.from = link.from;
  p.to = link.to;
  p.payload_bytes = tx.payload_bytes;
  p.congested = link.from == world_.plan.marked_link;
  p.checksummed = link.path == Path::kCopied;
  // Only chunks lie in memory that their sender leaves alone; a STATUS or a reply quotes passing bytes.
  const auto type = static_cast<PacketType>(std::to_integer<unsigned>(tx.head[0]) & 0x0f);
  p.by_reference = link.path != Path::kCopied && (type == PacketType::kData || type == PacketType::kResult);
  if (p.by_reference) {
    p.payload = tx.payload;
    return;
  }
  GATUN_CHECK(tx.payload_bytes + world_.plan.misalign <= p.data.size());
  if (tx.payload_bytes > 0) std::memcpy(p.data.data() + world_.plan.misalign, tx.payload, tx.payload_bytes);
  p.payload = p.data.data() + world_.plan.misalign;
}

Network::Fate Network::draw_fate(const Link& link) {
  const Plan& plan = world_.plan;
  Fate fate;
  if (cut(link)) {
    world_.marks.hit(Mark::kCutOff);
    fate.lost = true;
  }
  if (plan.has(Fault::kLoss) && draw(Draw::kLoss, link).chance_ppm(plan.rate(Fault::kLoss))) {
    world_.marks.hit(Mark::kLost);
    fate.lost = true;
  }
  if (plan.has(Fault::kDuplicate) && draw(Draw::kDuplicate, link).chance_ppm(plan.rate(Fault::kDuplicate))) {
    world_.marks.hit(Mark::kDuplicated);
    fate.twice = true;
  }
  if (plan.has(Fault::kReorder)) {
    Stream random = draw(Draw::kReorder, link);
    if (random.chance_ppm(plan.rate(Fault::kReorder))) {
      world_.marks.hit(Mark::kReordered);
      fate.in_order = false;
      fate.extra += static_cast<TimeNs>(random.below(static_cast<uint64_t>(16 * link.delay)));
    }
  }
  if (plan.has(Fault::kSpike)) {
    Stream random = draw(Draw::kSpike, link);
    if (random.chance_ppm(plan.rate(Fault::kSpike))) {
      world_.marks.hit(Mark::kSpiked);
      fate.in_order = random.one_in(2);
      fate.extra += static_cast<TimeNs>(random.log_between(10 * kUs, static_cast<uint64_t>(plan.spike_max)));
    }
  }
  return fate;
}

// What happens to the bytes of a packet that is delivered. Shared memory does not change them.
void Network::damage(Link& link, Packet& p) {
  const Plan& plan = world_.plan;
  if (plan.has(Fault::kMark) && draw(Draw::kMark, link).chance_ppm(plan.rate(Fault::kMark))) {
    world_.marks.hit(Mark::kMarked);
    p.congested = true;
  }
  if (!p.checksummed) return;
  if (plan.has(Fault::kCorrupt)) {
    Stream random = draw(Draw::kCorrupt, link);
    if (random.chance_ppm(plan.rate(Fault::kCorrupt))) {
      world_.marks.hit(Mark::kCorrupted);
      const uint64_t flips = random.log_between(1, 8);
      const uint64_t bits = 8 * (kHeaderBytes + p.payload_bytes);
      for (uint64_t i = 0; i < flips; ++i) {
        const uint64_t bit = random.below(bits);
        const uint64_t at = bit / 8;
        std::byte& byte = at < kHeaderBytes ? p.head[at] : p.data[plan.misalign + at - kHeaderBytes];
        byte ^= std::byte(1u << (bit % 8));
      }
    }
  }
  if (plan.has(Fault::kTruncate)) {
    Stream random = draw(Draw::kTruncate, link);
    if (p.payload_bytes > 0 && random.chance_ppm(plan.rate(Fault::kTruncate))) {
      world_.marks.hit(Mark::kTruncated);
      p.payload_bytes = static_cast<uint32_t>(random.below(p.payload_bytes));
    }
  }
}

void Network::launch(Link& link, uint32_t index, const Fate& fate) {
  const TimeNs jitter = static_cast<TimeNs>(draw(Draw::kDelay, link).below(static_cast<uint64_t>(link.delay / 4 + 1)));
  TimeNs arrival = world_.now + link.delay + jitter + fate.extra;
  if (fate.in_order) link.busy_until = arrival = std::max(arrival, link.busy_until);
  world_.queue.push(arrival, EventKind::kDeliver, index);
}

void Network::remember(const Link& link, const Packet& p) {
  if (!world_.plan.has(Fault::kReplay) || p.by_reference || !draw(Draw::kHistory, link).one_in(4)) return;
  if (history_.size() < kHistory) {
    history_.push_back(p);
  } else {
    history_[history_count_ % kHistory] = p;
  }
  ++history_count_;
}

// Puts an old packet on the wire again, on its own path.
void Network::replay(const Link& link) {
  if (!world_.plan.has(Fault::kReplay) || history_.empty()) return;
  Stream random = draw(Draw::kReplay, link);
  if (!random.chance_ppm(world_.plan.rate(Fault::kReplay))) return;
  world_.marks.hit(Mark::kReplayed);
  const Packet& old = history_[random.below(history_.size())];
  const uint32_t index = take();
  Packet& p = packet(index);
  p = old;
  p.payload = p.data.data() + world_.plan.misalign;
  if (world_.trace) trace("replayed", p);
  Link& path = links_[static_cast<size_t>(link_index(p.from, p.to))];
  launch(path, index, {.in_order = false, .extra = static_cast<TimeNs>(random.below(20 * kUs))});
}

// Somebody else sends something like the packet in hand, with a right checksum.
void Network::forge(const Link& link, const Packet& model) {
  if (!world_.plan.has(Fault::kForge)) return;
  Stream random = draw(Draw::kForge, link);
  if (!random.chance_ppm(world_.plan.rate(Fault::kForge))) return;
  Header header;
  if (decode(model.head.data(), model.payload, model.payload_bytes, false, &header) != Decode::kOk) return;
  world_.marks.hit(Mark::kForged);
  const uint32_t index = take();
  Packet& p = packet(index);
  p = model;
  p.by_reference = false;
  p.checksummed = true;
  p.payload = p.data.data() + world_.plan.misalign;
  for (uint32_t i = 0; i < p.payload_bytes; ++i) p.data[world_.plan.misalign + i] = std::byte(random.next());
  const uint64_t kind = random.below(6);
  if (kind == 0 && header.type == PacketType::kData) {  // the true peer in the place of another child
    header.child ^= 1;
  } else {
    switch (kind) {
      case 1: header.seq += static_cast<uint32_t>(random.between(1, 8)); break;
      case 2:
        header.type = PacketType::kResult;
        header.flags |= kFlagRefused;
        p.payload_bytes = 0;
        break;
      case 3:
        header.type = PacketType::kProbe;
        p.payload_bytes = std::max(p.payload_bytes, 8u);
        break;
      case 4: header.tree ^= static_cast<uint8_t>(random.between(1, 15)); break;
      default: break;
    }
    p.from = pick_forger(link, header, kind == 1 || kind == 5, random);
  }
  encode(header, p.payload, p.payload_bytes, true, p.head.data());
  if (world_.trace) trace("forged", p);
  world_.queue.push(world_.now + static_cast<TimeNs>(random.below(static_cast<uint64_t>(4 * link.delay))),
                    EventKind::kDeliver, index);
}

// The members of a job trust each other, so a forger is a stranger, a member of another job, a colleague in the place of the
// true peer, or the true peer with a handle that is not this job's.
uint32_t Network::pick_forger(const Link& link, Header& header, bool same_fields, Stream& random) const {
  const auto lines = static_cast<uint32_t>(world_.plan.lines.size());
  const uint32_t line = header.job & 0x3ff;
  const auto rank = static_cast<uint32_t>(random.below(world_.plan.lines[line % lines][0].ranks));
  const uint64_t who = random.below(4);
  if (who == 1 && lines > 1) return host_endpoint((line + 1) % lines, rank);
  if (who == 2) {
    header.job ^= static_cast<uint32_t>(random.between(1, 0x3fffff)) << 10;
    return link.from;
  }
  const uint32_t colleague = host_endpoint(line % lines, rank);
  const bool host_or_between_switches = link.from >= kSwitches || link.to < kSwitches;
  if (who == 3 && same_fields && host_or_between_switches && colleague != link.from) return colleague;
  return kStranger;
}

void Network::lose_one(uint32_t from, uint32_t job, uint8_t tree, uint32_t seq) {
  losing_ = true;
  lost_at_ = kNever;
  lose_from_ = from;
  lose_job_ = job;
  lose_tree_ = tree;
  lose_seq_ = seq;
}

void Network::trace(const char* what, const Packet& p) {
  Header h;
  const Decode decoded = decode(p.head.data(), p.payload, p.payload_bytes, false, &h);
  if (decoded != Decode::kOk) {
    world_.log("%2u -> %2u  %s: damaged (%s)", p.from, p.to, what, gatun::name(decoded));
    return;
  }
  world_.log("%2u -> %2u  %s: %s job %x tree %u child %u chunk %#x op %u contract %08x of %u elems %u%s%s%s%s%s%s", p.from,
             p.to, what, name(h.type), h.job, h.tree, h.child, h.seq, h.op, h.contract, h.contributors, h.elems,
             h.flags & kFlagEmpty ? " empty" : "", h.flags & kFlagPartial ? " partial" : "",
             h.flags & kFlagRefused ? " refused" : "", h.flags & kFlagRepeat ? " repeat" : "",
             h.flags & kFlagCongested ? " congested" : "", p.congested ? " CE" : "");
}

}  // namespace gatun::sim
