#include "protocols/control.h"

#include <algorithm>
#include <type_traits>

#include "protocols/big_endian.h"
#include "protocols/fields.h"
#include "protocols/status.h"

namespace gatun::control {
namespace {

// Values of the type byte: the message's place in the variant, plus one. Refused keeps its number in every version.
constexpr uint8_t kRefusedType = 12;
using Writer = FieldWriter;
using Reader = FieldReader;
static_assert(std::is_same_v<std::variant_alternative_t<kRefusedType - 1, Message>, Refused>);

void write(Writer& w, const Join& m) {
  w.text(m.job, kNameBytesMax);
  w.u32(m.rank);
  w.u32(m.size);
  w.u32(m.trees);
  w.u32(m.window);
  w.u32(m.payload_bytes);
  w.u8(static_cast<uint8_t>(m.transport));
  w.u8(static_cast<uint8_t>(m.fallback));
  w.u32(m.path_payload_bytes);
  w.u32(m.receive_bytes);
  w.u32(m.join_timeout_ms);
  w.u32(m.pid);
  w.u32(m.failovers);
  w.text(m.host, kNameBytesMax);
  w.text(m.host_identity, kNameBytesMax);
  w.text(m.software, kNameBytesMax);
  w.text(m.card, kCardBytesMax);
}
void read(Reader& r, Join& m) {
  m.job = r.text(kNameBytesMax);
  m.rank = r.u32();
  m.size = r.u32();
  m.trees = r.u32();
  m.window = r.u32();
  m.payload_bytes = r.u32();
  m.transport = static_cast<TransportChoice>(r.u8_below(4));
  m.fallback = static_cast<FallbackChoice>(r.u8_below(3));
  m.path_payload_bytes = r.u32();
  m.receive_bytes = r.u32();
  m.join_timeout_ms = r.u32();
  m.pid = r.u32();
  m.failovers = r.u32();
  m.host = r.text(kNameBytesMax);
  m.host_identity = r.text(kNameBytesMax);
  m.software = r.text(kNameBytesMax);
  m.card = r.text(kCardBytesMax);
}

void write(Writer& w, const Admit& m) {
  w.u32(m.job);
  w.u64(m.token);
  w.u32(m.window);
  w.u32(m.payload_bytes);
  w.u64(m.first_seq);
  w.u32(m.first_op);
  w.u32(m.keepalive_ms);
  w.u8(static_cast<uint8_t>(m.transport));
  w.text(m.shm_socket, kNameBytesMax);
  size_t trees = std::min(m.trees.size(), kListMax);
  w.u16(static_cast<uint16_t>(trees));
  for (size_t i = 0; i < trees; ++i) {
    w.u16(m.trees[i].port);
    w.u8(m.trees[i].lane);
    w.u8(m.trees[i].child);
  }
  w.text(m.data_ip, kNameBytesMax);
}
void read(Reader& r, Admit& m) {
  m.job = r.u32();
  m.token = r.u64();
  m.window = r.u32();
  m.payload_bytes = r.u32();
  m.first_seq = r.u64();
  m.first_op = r.u32();
  m.keepalive_ms = r.u32();
  m.transport = static_cast<TransportChoice>(r.u8_below(4));
  m.shm_socket = r.text(kNameBytesMax);
  m.trees.resize(r.count(kListMax));
  for (Admit::Tree& tree : m.trees) {
    tree.port = r.u16();
    tree.lane = r.u8();
    tree.child = r.u8();
  }
  m.data_ip = r.text(kNameBytesMax);
}

void write(Writer&, const Ready&) {}
void read(Reader&, Ready&) {}
void write(Writer&, const Start&) {}
void read(Reader&, Start&) {}
void write(Writer&, const Leave&) {}
void read(Reader&, Leave&) {}

void write(Writer& w, const KeepAlive& m) {
  w.u8(m.ask);
  w.u32(m.started);
  w.u32(m.finished);
}
void read(Reader& r, KeepAlive& m) {
  m.ask = r.u8_below(2);
  m.started = r.u32();
  m.finished = r.u32();
}

void write(Writer& w, const Report& m) {
  w.u32(m.op);
  w.contract(m.contract);
}
void read(Reader& r, Report& m) {
  m.op = r.u32();
  m.contract = r.contract();
}

void write(Writer& w, const Mismatch& m) {
  w.u32(m.op);
  w.text(m.text);
}
void read(Reader& r, Mismatch& m) {
  m.op = r.u32();
  m.text = r.text();
}

template <typename M>
concept TextOnly = std::is_same_v<M, Refused> || std::is_same_v<M, Closing> || std::is_same_v<M, Waiting>;

void write(Writer& w, const Lost& m) {
  w.u32(m.rank);
  w.text(m.text);
}
void read(Reader& r, Lost& m) {
  m.rank = r.u32();
  m.text = r.text();
}

void write(Writer& w, const Left& m) {
  w.u32(m.rank);
  w.u32(m.started);
  w.text(m.text);
}
void read(Reader& r, Left& m) {
  m.rank = r.u32();
  m.started = r.u32();
  m.text = r.text();
}

template <TextOnly M>
void write(Writer& w, const M& m) {
  w.text(m.text);
}
template <TextOnly M>
void read(Reader& r, M& m) {
  m.text = r.text();
}

void write(Writer& w, const Abort& m) {
  w.u32(m.rank);
  w.u8(m.timed_out ? 1 : 0);
  w.text(m.text);
}
void read(Reader& r, Abort& m) {
  m.rank = r.u32();
  m.timed_out = r.u8_below(2) != 0;
  m.text = r.text();
}

void write(Writer& w, const Stalled& m) {
  w.u32(m.op);
  size_t ranks = std::min(m.ranks.size(), kListMax);
  w.u16(static_cast<uint16_t>(ranks));
  for (size_t i = 0; i < ranks; ++i) w.u16(m.ranks[i]);
  w.text(m.text);
}
void read(Reader& r, Stalled& m) {
  m.op = r.u32();
  m.ranks.resize(r.count(kListMax));
  for (uint16_t& rank : m.ranks) rank = r.u16();
  m.text = r.text();
}

void write(Writer& w, const Peers& m) {
  const size_t count = std::min(m.cards.size(), kListMax);
  w.u16(static_cast<uint16_t>(count));
  for (size_t i = 0; i < count; ++i) w.text(m.cards[i], kCardBytesMax);
}
void read(Reader& r, Peers& m) {
  m.cards.resize(r.count(kListMax));
  for (std::string& card : m.cards) card = r.text(kCardBytesMax);
}

void write(Writer& w, const Attach& m) {
  w.u8(m.lane);
  w.text(m.card, kCardBytesMax);
}
void read(Reader& r, Attach& m) {
  m.lane = r.u8();
  m.card = r.text(kCardBytesMax);
}

// Makes the alternative with this index and reads it.
template <size_t I = 0>
void read_alternative(size_t index, Reader& reader, Message* message) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (index == I) return read(reader, message->emplace<I>());
    read_alternative<I + 1>(index, reader, message);
  }
}

constexpr const char* kNames[] = {"Join",     "Admit",   "Ready", "Start",  "KeepAlive", "Report",
                                  "Mismatch", "Leave",   "Abort", "Lost",   "Left",      "Refused",
                                  "Closing",  "Stalled", "Peers", "Attach", "Waiting"};
static_assert(std::size(kNames) == std::variant_size_v<Message>);

}  // namespace

const char* name(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kAuto: return "auto";
    case TransportChoice::kShm: return "shm";
    case TransportChoice::kUdp: return "udp";
    case TransportChoice::kVerbs: return "verbs";
  }
  return "unknown transport";
}

const char* name(FallbackChoice choice) {
  switch (choice) {
    case FallbackChoice::kOff: return "off";
    case FallbackChoice::kRing: return "ring";
    case FallbackChoice::kExact: return "exact";
  }
  return "unknown fallback";
}

const char* name(const Message& message) {
  return kNames[message.index()];
}

bool transport_choice(std::string_view text, TransportChoice* choice) {
  for (TransportChoice candidate :
       {TransportChoice::kAuto, TransportChoice::kShm, TransportChoice::kUdp, TransportChoice::kVerbs}) {
    if (text != name(candidate)) continue;
    *choice = candidate;
    return true;
  }
  return false;
}

bool fallback_choice(std::string_view text, FallbackChoice* choice) {
  for (FallbackChoice candidate : {FallbackChoice::kOff, FallbackChoice::kRing, FallbackChoice::kExact}) {
    if (text != name(candidate)) continue;
    *choice = candidate;
    return true;
  }
  return false;
}

void encode(const Message& message, std::vector<std::byte>* out) {
  size_t begin = out->size();
  Writer writer(out);
  writer.u32(0);
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& m) { write(writer, m); }, message);
  size_t length = out->size() - begin - 4;
  GATUN_CHECK(length <= kFrameBytesMax);
  put32(out->data() + begin, static_cast<uint32_t>(length));
}

void Parser::push(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
  begin_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Parser::Next Parser::fail(std::string why) {
  error_ = std::move(why);
  return Next::kError;
}

Parser::Next Parser::next(Message* message) {
  if (!error_.empty()) return Next::kError;
  std::span<const std::byte> in(buffer_.data() + begin_, buffer_.size() - begin_);
  if (in.size() < 4) return Next::kMore;
  size_t length = take32(in.data());
  // Before anything else: whoever connects with another protocol (HTTP, TLS) shows up here with an absurd length.
  if (length < 2 || length > kFrameBytesMax) return fail("does not speak Gatun's control protocol");
  if (in.size() < 6) return Next::kMore;
  unsigned version = std::to_integer<unsigned>(in[4]), type = std::to_integer<unsigned>(in[5]);
  if (version != kVersion && type != kRefusedType) {
    return fail("speaks control protocol " + std::to_string(version) + ", this is " + std::to_string(kVersion) +
                ": install the same release of Gatun on all hosts");
  }
  if (in.size() < 4 + length) return Next::kMore;
  if (type == 0 || type > std::variant_size_v<Message>) {
    return fail("sent a control message of unknown type " + std::to_string(type));
  }
  Reader reader(in.subspan(6, length - 2));
  read_alternative(type - 1, reader, message);
  if (!reader.done()) {
    return fail(std::string("sent a malformed ") + kNames[type - 1] + " message of " + std::to_string(length) + " bytes");
  }
  begin_ += 4 + length;
  return Next::kMessage;
}

}  // namespace gatun::control
