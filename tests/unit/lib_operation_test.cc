#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "host/lib/operation.h"
#include "protocols/wire.h"

using namespace gatun;

namespace {

constexpr uint64_t kHuge = (uint64_t{5} << 31) + 12345;  // elements: beyond 2^33 bytes of f32

// Addresses that are never touched.
const std::byte* const kSend = reinterpret_cast<const std::byte*>(uintptr_t{1} << 40);
std::byte* const kRecv = reinterpret_cast<std::byte*>((uintptr_t{1} << 44) + 3);

Operation make(Collective collective, Type type, uint64_t count, uint32_t rank, uint32_t ranks, uint32_t root = 0,
               uint32_t payload = 1024) {
  const Contract contract{.collective = collective, .type = type, .op = Op::kSum, .root = root, .count = count};
  return Operation(contract, kSend, kRecv, {.rank = rank, .ranks = ranks, .payload_bytes = payload});
}

// Runs one collective by plain loops over the pieces of every rank, with u8 sums, and returns all receive buffers.
std::vector<std::vector<uint8_t>> run(Collective collective, uint32_t ranks, uint32_t root, uint64_t count, uint32_t payload,
                                      std::vector<std::vector<uint8_t>> send) {
  const Contract contract{.collective = collective, .type = Type::kU8, .op = Op::kSum, .root = root, .count = count};
  std::vector<std::vector<uint8_t>> recv(ranks);
  std::vector<Operation> operations;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    recv[rank].assign(static_cast<size_t>(Operation::receive_bytes(contract, rank, ranks)), 0xee);
    operations.emplace_back(contract, send[rank].data(), recv[rank].data(),
                            Operation::Geometry{.rank = rank, .ranks = ranks, .payload_bytes = payload});
    REQUIRE(operations[rank].chunks() == operations[0].chunks());
  }
  for (uint64_t index = 0; index < operations[0].chunks(); ++index) {
    const uint32_t bytes = operations[0].piece(index).bytes;
    REQUIRE(bytes > 0);
    REQUIRE(bytes <= payload);
    std::vector<uint8_t> sum(bytes, 0);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const Operation::Piece piece = operations[rank].piece(index);
      REQUIRE(piece.bytes == bytes);
      REQUIRE(piece.elems == operations[rank].piece_elems(index));
      if (!piece.source) continue;
      for (uint32_t i = 0; i < bytes; ++i) sum[i] = static_cast<uint8_t>(sum[i] + std::to_integer<uint8_t>(piece.source[i]));
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const Operation::Piece piece = operations[rank].piece(index);
      if (piece.target) std::memcpy(piece.target, sum.data() + piece.kept_from, piece.kept_bytes);
    }
  }
  return recv;
}

std::vector<std::vector<uint8_t>> inputs(uint32_t ranks, uint64_t bytes) {
  std::vector<std::vector<uint8_t>> all(ranks, std::vector<uint8_t>(bytes));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t i = 0; i < bytes; ++i) all[rank][i] = static_cast<uint8_t>(i * 7 + rank * 13 + 1);
  }
  return all;
}

}  // namespace

TEST_CASE("operation__covers_every_collective", "[lib][operation]") {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    for (const uint64_t count :
         {uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{65}, uint64_t{127}, uint64_t{129}, uint64_t{500}}) {
      const uint32_t payload = 64;
      const uint32_t root = ranks - 1;
      const auto whole = inputs(ranks, count);
      std::vector<uint8_t> sum(count, 0);
      for (const auto& input : whole) {
        for (uint64_t i = 0; i < count; ++i) sum[i] = static_cast<uint8_t>(sum[i] + input[i]);
      }
      for (const auto& recv : run(Collective::kAllReduce, ranks, 0, count, payload, whole)) CHECK(recv == sum);
      CHECK(run(Collective::kReduce, ranks, root, count, payload, whole)[root] == sum);
      for (const auto& recv : run(Collective::kBroadcast, ranks, root, count, payload, whole)) CHECK(recv == whole[root]);
      std::vector<uint8_t> all;
      for (const auto& input : whole) all.insert(all.end(), input.begin(), input.end());
      for (const auto& recv : run(Collective::kAllGather, ranks, 0, count, payload, whole)) CHECK(recv == all);

      const auto segments = inputs(ranks, count * ranks);
      const auto scattered = run(Collective::kReduceScatter, ranks, 0, count, payload, segments);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (uint64_t i = 0; i < count; ++i) {
          uint8_t expected = 0;
          for (const auto& input : segments) expected = static_cast<uint8_t>(expected + input[rank * count + i]);
          REQUIRE(scattered[rank][i] == expected);
        }
      }
    }
  }
}

TEST_CASE("operation__zero_elements_are_one_empty_chunk", "[lib][operation]") {
  for (int c = 0; c < kCollectives - 1; ++c) {
    const Operation nothing = make(static_cast<Collective>(c), Type::kF32, 0, 0, 4);
    CHECK(nothing.empty());
    REQUIRE(nothing.chunks() == 1);
    const Operation::Piece piece = nothing.piece(0);
    CHECK(piece.bytes == 0);
    CHECK(piece.elems == 0);
    CHECK(nothing.piece_elems(0) == 0);
    CHECK(piece.source == nullptr);
    CHECK(piece.target == nullptr);
  }
  CHECK_FALSE(make(Collective::kBarrier, Type::kF32, 0, 0, 4).empty());
}

TEST_CASE("operation__barrier_is_one_byte", "[lib][operation]") {
  const Operation barrier = make(Collective::kBarrier, Type::kF64, 0, 3, 4);
  REQUIRE(barrier.chunks() == 1);
  const Operation::Piece piece = barrier.piece(0);
  CHECK(piece.bytes == 1);
  CHECK(piece.elems == 1);
  CHECK(piece.source != nullptr);
  CHECK(piece.target == nullptr);
  CHECK(barrier.wire_type() == Type::kU8);
}

// Offsets beyond 2^31 bytes and elements: the last chunk, and the chunks around every power of two.
TEST_CASE("operation__offsets_have_64_bits", "[lib][operation]") {
  for (const Type type : {Type::kU8, Type::kF32, Type::kF64}) {
    const uint64_t elem = elem_bytes(type);
    const Operation all = make(Collective::kAllReduce, type, kHuge, 1, 4);
    const uint64_t per_chunk = 1024 / elem;
    REQUIRE(all.chunks() == (kHuge + per_chunk - 1) / per_chunk);
    for (const uint64_t index :
         {uint64_t{0}, (uint64_t{1} << 21) - 1, uint64_t{1} << 21, uint64_t{1} << 22, all.chunks() - 1}) {
      const Operation::Piece piece = all.piece(index);
      CHECK(piece.source == kSend + index * 1024);
      CHECK(piece.target == kRecv + index * 1024);
    }
    const Operation::Piece last = all.piece(all.chunks() - 1);
    CHECK((all.chunks() - 1) * per_chunk + last.elems == kHuge);

    const Operation gather = make(Collective::kAllGather, type, kHuge, 2, 4);
    const uint64_t segment_chunks = gather.chunks() / 4;
    const Operation::Piece third = gather.piece(segment_chunks * 3 + 5);
    CHECK(third.target == kRecv + 3 * kHuge * elem + 5 * 1024);
    CHECK(third.source == nullptr);
    CHECK(gather.piece(segment_chunks * 2 + 5).source == kSend + 5 * 1024);

    const Operation scatter = make(Collective::kReduceScatter, type, kHuge, 3, 4);
    const uint64_t begin = 3 * kHuge * elem;
    const Operation::Piece first = scatter.piece(begin / 1024);
    CHECK(first.target == kRecv);
    CHECK(first.kept_from == begin % 1024);
    const Operation::Piece tail = scatter.piece(scatter.chunks() - 1);
    CHECK(tail.target + tail.kept_bytes == kRecv + kHuge * elem);
    CHECK(scatter.piece(begin / 1024 - 1).target == nullptr);
  }
}

TEST_CASE("operation__widened_chunks_fit_in_f32", "[lib][operation]") {
  const Contract contract{.collective = Collective::kAllReduce, .type = Type::kBF16, .op = Op::kSum, .count = 1000};
  const Operation wide(contract, kSend, kRecv, {.rank = 0, .ranks = 2, .payload_bytes = 1024, .widened = true});
  CHECK(wide.piece(0).elems == 256);
  CHECK(wide.piece(0).bytes == 512);
  const Operation narrow(contract, kSend, kRecv, {.rank = 0, .ranks = 2, .payload_bytes = 1024});
  CHECK(narrow.piece(0).elems == 512);
}

TEST_CASE("receive_bytes__refuses_what_63_bits_cannot_hold", "[lib][operation]") {
  const auto bytes = [](Collective collective, Type type, uint64_t count) {
    return Operation::receive_bytes({.collective = collective, .type = type, .count = count}, 0, 64);
  };
  CHECK(bytes(Collective::kAllReduce, Type::kF64, UINT64_MAX / 4) == -1);
  CHECK(bytes(Collective::kAllReduce, Type::kU8, INT64_MAX) == INT64_MAX);
  CHECK(bytes(Collective::kAllGather, Type::kU8, INT64_MAX / 63) == -1);
  CHECK(bytes(Collective::kAllGather, Type::kU8, INT64_MAX / 64) > 0);
  CHECK(Operation::send_bytes({.collective = Collective::kReduceScatter, .type = Type::kU8, .count = INT64_MAX / 63}, 0,
                              64) == -1);
}
