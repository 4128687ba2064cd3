#include "protocols/control.h"

#include <catch2/catch.hpp>
#include <random>

namespace gatun::control {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(const std::string& hex) {
  Bytes out;
  std::string digits;
  for (char c : hex) {
    if (c != ' ') digits += c;
  }
  for (size_t i = 0; i + 1 < digits.size(); i += 2) out.push_back(std::byte(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return out;
}

std::string to_hex(const Bytes& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (std::byte b : bytes) {
    out += kDigits[std::to_integer<int>(b) >> 4];
    out += kDigits[std::to_integer<int>(b) & 15];
  }
  return out;
}

Bytes frame(const Message& message) {
  Bytes out;
  encode(message, &out);
  return out;
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string error_of(const Bytes& bytes) {
  Parser parser;
  parser.push(bytes);
  Message message;
  Parser::Next next = parser.next(&message);
  return next == Parser::Next::kError ? parser.error() : next == Parser::Next::kMore ? "more" : "message";
}

// Every kind of message with every field set to something of its own.
std::vector<Message> samples() {
  return {
      Join{"train", 3, 8, 2, 64, 1408, TransportChoice::kUdp, FallbackChoice::kRing, 1472, 425984, 60000, 4711, 5, "node7",
           "boot/1", "gatun 0.1.0", "10.0.0.7:9"},
      Admit{0x12345401,
            0x0102030405060708,
            64,
            1408,
            0xfffffff0,
            7,
            30000,
            TransportChoice::kShm,
            "gatun-7117",
            {{7117, 0, 3}, {7118, 1, 3}},
            "10.0.0.9"},
      Ready{},
      Start{},
      KeepAlive{1, 9, 8},
      Report{5, {Collective::kBroadcast, Type::kBF16, Op::kMax, 2, 409600, 77}},
      Mismatch{5, "operation 5 differs"},
      Leave{},
      Abort{2, "enough"},
      Lost{1, "rank 1 is lost"},
      Left{0, "rank 0 left", 9},
      Refused{"no"},
      Closing{"the switch stops"},
      Stalled{12, {1, 4}, "waiting"},
      Peers{{"a", "b"}},
      Attach{3, "01ab"},
      Waiting{"rank 2 of 4"},
  };
}

}  // namespace

TEST_CASE("control_encode__golden_bytes", "[control]") {
  const char* golden[] = {
      "0000005b 02 01 0005 747261696e 00000003 00000008 00000002 00000040 00000580 02 01 000005c0 00068000 0000ea60 "
      "00001267 00000005"
      " 0005 6e6f646537 0006 626f6f742f31 000b 676174756e20302e312e30 000a 31302e302e302e373a39",
      "00000047 02 02 12345401 0102030405060708 00000040 00000580 00000000fffffff0 00000007 00007530 01"
      " 000a 676174756e2d37313137 0002 1bcd 00 03 1bce 01 03 0008 31302e302e302e39",
      "00000002 02 03",
      "00000002 02 04",
      "0000000b 02 05 01 00000009 00000008",
      "0000001d 02 06 00000005 03 09 02 00000002 0000000000064000 000000000000004d",
      "0000001b 02 07 00000005 0013 6f7065726174696f6e203520646966666572 73",
      "00000002 02 08",
      "0000000f 02 09 00000002 00 0006 656e6f756768",
      "00000016 02 0a 00000001 000e 72616e6b2031206973206c6f7374",
      "00000017 02 0b 00000000 00000009 000b 72616e6b2030206c656674",
      "00000006 02 0c 0002 6e6f",
      "00000014 02 0d 0010 746865207377697463682073746f7073",
      "00000015 02 0e 0000000c 0002 0001 0004 0007 77616974696e67",
      "0000000a 02 0f 0002 0001 61 0001 62",
      "00000009 02 10 03 0004 30316162",
      "0000000f 02 11 000b 72616e6b2032206f662034",
  };
  std::vector<Message> messages = samples();
  REQUIRE(std::size(golden) == messages.size());
  REQUIRE(messages.size() == std::variant_size_v<Message>);
  for (size_t i = 0; i < messages.size(); ++i) {
    INFO(name(messages[i]));
    CHECK(messages[i].index() == i);
    CHECK(to_hex(frame(messages[i])) == to_hex(from_hex(golden[i])));
  }
}

TEST_CASE("parser_next__gives_back_what_was_encoded_however_the_bytes_arrive", "[control]") {
  Bytes stream;
  for (const Message& message : samples()) encode(message, &stream);
  for (size_t step : {size_t{1}, size_t{3}, size_t{64}, stream.size()}) {
    Parser parser;
    std::vector<Message> got;
    for (size_t at = 0; at < stream.size(); at += step) {
      parser.push({stream.data() + at, std::min(step, stream.size() - at)});
      Message message;
      while (parser.next(&message) == Parser::Next::kMessage) got.push_back(message);
      CHECK(parser.error().empty());
    }
    REQUIRE(got.size() == samples().size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(to_hex(frame(got[i])) == to_hex(frame(samples()[i])));
    CHECK(parser.buffered_bytes() == 0);
  }
}

TEST_CASE("parser_next__every_truncated_body_is_malformed", "[control]") {
  for (const Message& message : samples()) {
    Bytes whole = frame(message);
    for (size_t body = 0; body + 6 < whole.size(); ++body) {
      Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(6 + body));
      cut[2] = std::byte((body + 2) >> 8);
      cut[3] = std::byte((body + 2) & 255);
      INFO(name(message) << " cut to " << body);
      CHECK(error_of(cut) ==
            std::string("sent a malformed ") + name(message) + " message of " + std::to_string(body + 2) + " bytes");
    }
    Bytes longer = whole + from_hex("00");
    longer[3] = std::byte(std::to_integer<int>(longer[3]) + 1);
    CHECK(error_of(longer).find("malformed") != std::string::npos);
    CHECK(error_of(Bytes(whole.begin(), whole.end() - 1)) == "more");
  }
}

TEST_CASE("parser_next__version_type_and_length", "[control]") {
  CHECK(error_of(from_hex("00000002 01 01")) ==
        "speaks control protocol 1, this is 2: install the same release of Gatun on all hosts");
  CHECK(error_of(from_hex("00001000 03 01")).find("speaks control protocol 3, this is 2: ") ==
        0);  // before the body is there
  CHECK(error_of(from_hex("00000002 02 00")) == "sent a control message of unknown type 0");
  CHECK(error_of(from_hex("00000002 02 12")) == "sent a control message of unknown type 18");
  CHECK(error_of(from_hex("00000001 01")) == "does not speak Gatun's control protocol");
  CHECK(error_of(from_hex("00010001")) == "does not speak Gatun's control protocol");
  CHECK(error_of(from_hex("474554202f")) == "does not speak Gatun's control protocol");  // "GET /"
  CHECK(error_of(from_hex("00010000 02 01")) == "more");
  CHECK(error_of({}) == "more");
}

TEST_CASE("parser_next__refused_is_readable_from_any_version", "[control]") {
  Parser parser;
  parser.push(from_hex("00000006 09 0c 0002 6e6f"));
  Message message;
  REQUIRE(parser.next(&message) == Parser::Next::kMessage);
  CHECK(std::get<Refused>(message).text == "no");
}

TEST_CASE("parser_next__values_outside_their_range_are_malformed", "[control]") {
  Bytes report = frame(samples()[5]);
  for (size_t field : {size_t{10}, size_t{11}, size_t{12}}) {  // collective, type, op
    Bytes bad = report;
    bad[field] = std::byte(200);
    CHECK(error_of(bad).find("malformed Report") != std::string::npos);
  }
  CHECK(error_of(from_hex("0000000b 02 05 02 00000009 00000008")).find("malformed KeepAlive") != std::string::npos);
  CHECK(error_of(from_hex("00000008 02 0e 0000000c 0041")).find("malformed Stalled") != std::string::npos);  // 65 ranks
}

TEST_CASE("parser_next__after_an_error_stays_an_error", "[control]") {
  Parser parser;
  parser.push(from_hex("00000002 02 00"));
  Message message;
  CHECK(parser.next(&message) == Parser::Next::kError);
  parser.push(frame(Ready{}));
  CHECK(parser.next(&message) == Parser::Next::kError);
}

TEST_CASE("control_encode__cuts_long_texts_and_control_characters_do_not_come_out", "[control]") {
  Parser parser;
  parser.push(frame(Refused{std::string(100000, 'x')}));
  Message message;
  REQUIRE(parser.next(&message) == Parser::Next::kMessage);
  CHECK(std::get<Refused>(message).text == std::string(kTextBytesMax, 'x'));
  parser.push(frame(Closing{"a\nb\x1b[2J\x7f\xc3\xa9"}));
  REQUIRE(parser.next(&message) == Parser::Next::kMessage);
  CHECK(std::get<Closing>(message).text == "a?b?[2J?\xc3\xa9");
}

TEST_CASE("parser_next__random_bytes_never_crash_and_buffers_stay_bounded", "[control]") {
  std::mt19937 generator(1);
  std::vector<Message> messages = samples();
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = frame(messages[generator() % messages.size()]);
    for (int flips = generator() % 4; flips > 0; --flips) bytes[generator() % bytes.size()] = std::byte(generator());
    Parser parser;
    parser.push(bytes);
    Message message;
    while (parser.next(&message) == Parser::Next::kMessage) CHECK_FALSE(frame(message).empty());
    CHECK(parser.buffered_bytes() <= kFrameBytesMax + 4);
  }
}

TEST_CASE("transport_choice__names", "[control]") {
  TransportChoice choice = TransportChoice::kAuto;
  CHECK((transport_choice("shm", &choice) && choice == TransportChoice::kShm));
  CHECK_FALSE(transport_choice("tcp", &choice));
  CHECK(choice == TransportChoice::kShm);
}

}  // namespace gatun::control
