// Any sequence of operations, answers, refusals and waits into a Worker.
//
// Checked: what it sends lies within the window and where arithmetic puts it, every chunk is news at most once, an operation
// is done once and only with all of its chunks or a refusal, it always has a timer while something is missing; and from
// whatever state the input leaves, answering everything from then on ends with an idle worker within a bound.

#include <algorithm>
#include <set>

#include "protocols/status.h"
#include "protocols/worker.h"
#include "tests/fuzz/fuzz.h"

namespace gatun::fuzz {
namespace {

enum Step : uint8_t { kSubmit, kAnswerSent, kAnyResult, kAnyRefusal, kRefuseSent, kStatus, kWait, kSend, kSteps };

class Harness {
 public:
  explicit Harness(Input& input) : config_(make_config(input)), worker_(config_) {}

  void step(Input& input) {
    switch (input.below(kSteps)) {
      case kSubmit: submit(input.u8() % 24); break;
      case kAnswerSent:
        if (!sent_.empty()) result(sent_[input.u8() % sent_.size()], input.bit());
        break;
      case kAnyResult: {
        const uint32_t tree = input.below(config_.trees + 1);
        const uint32_t seq = near(tree, input);
        take(worker_.on_result(tree, seq, any_op(input), input.bit(), now_));
        break;
      }
      case kAnyRefusal: {
        const uint32_t tree = input.below(config_.trees + 1);
        const uint32_t seq = near(tree, input);
        take(worker_.on_refused(tree, seq, any_op(input), now_));
        break;
      }
      case kRefuseSent:
        if (!sent_.empty()) {
          const Worker::Chunk chunk = sent_[input.u8() % sent_.size()];
          take(worker_.on_refused(chunk.tree, wire_seq(chunk.seq), static_cast<uint16_t>(chunk.op - input.below(2)), now_));
        }
        break;
      case kStatus: {
        const uint32_t tree = input.below(config_.trees + 1);
        worker_.on_status(tree, near(tree, input), now_);
        break;
      }
      case kWait: now_ += TimeNs{input.u8()} * kMs; break;
      case kSend: send(1 + input.below(16)); break;
    }
    check_timer();
  }

  // The world behaves from here on.
  void finish() {
    size_t rounds = 0;
    while (!worker_.idle()) {
      GATUN_CHECK(++rounds < 20000);
      if (send(1000) == 0) {
        const TimeNs timer = worker_.poll_timer();
        GATUN_CHECK(timer != kNever);
        now_ = std::max(now_, timer);
      }
      for (const Worker::Chunk& chunk : std::vector(sent_)) result(chunk, false);
      sent_.clear();
    }
    GATUN_CHECK(worker_.operations() == 0);
  }

 private:
  static Worker::Config make_config(Input& input) {
    Worker::Config config;
    config.trees = 1 + input.below(4);
    config.window = 1u << input.below(5);
    config.window_initial = 1 + input.below(config.window);
    config.reliable = input.bit();
    config.first_seq = (input.bit() ? 0xfffffff0u : 0u) + Seq{input.u8()};
    config.first_op = (input.bit() ? 0xfffffffau : 0xfff0u) + input.below(8);
    return config;
  }

  void submit(uint64_t chunks) {
    if (!worker_.can_submit()) return;
    const uint32_t op = worker_.submit(chunks);
    GATUN_CHECK(op == config_.first_op + static_cast<uint32_t>(operations_.size()));
    operations_.push_back({.chunks = chunks, .done = chunks == 0});
  }

  uint32_t near(uint32_t tree, Input& input) {
    const Seq base = tree < config_.trees ? worker_.oldest(tree) : 0;
    return wire_seq(base + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int8_t>(input.u8()))));
  }
  uint16_t any_op(Input& input) { return static_cast<uint16_t>(worker_.next_op() - 1 - input.below(6)); }

  void result(const Worker::Chunk& chunk, bool congested) {
    take(worker_.on_result(chunk.tree, wire_seq(chunk.seq), static_cast<uint16_t>(chunk.op), congested, now_));
  }

  void take(const Worker::Outcome& outcome) {
    if (outcome.verdict != Worker::Verdict::kNews && outcome.verdict != Worker::Verdict::kFailed) return;
    const uint32_t index = outcome.op - config_.first_op;
    if (outcome.verdict == Worker::Verdict::kFailed && !outcome.op_done) return;
    GATUN_CHECK(index < operations_.size());
    Operation& operation = operations_[index];
    GATUN_CHECK(!operation.done);
    if (outcome.verdict == Worker::Verdict::kNews) {
      GATUN_CHECK(outcome.index < operation.chunks);
      GATUN_CHECK(operation.news.insert(outcome.index).second);
      GATUN_CHECK(outcome.op_done == (operation.news.size() == operation.chunks));
    }
    operation.done = outcome.op_done;
  }

  size_t send(size_t most) {
    Worker::Chunk chunk;
    size_t count = 0;
    const size_t bound = size_t{config_.trees} * config_.window * 2;  // at one moment: repeats and new ones
    while (count < most && worker_.poll_send(now_, &chunk)) {
      GATUN_CHECK(++count <= bound);
      GATUN_CHECK(chunk.tree < config_.trees);
      const Seq oldest = worker_.oldest(chunk.tree);
      GATUN_CHECK(chunk.seq >= oldest && chunk.seq < oldest + config_.window);
      const uint32_t index = chunk.op - config_.first_op;
      GATUN_CHECK(index < operations_.size() && chunk.index < operations_[index].chunks);
      GATUN_CHECK((chunk.op + chunk.index) % config_.trees == chunk.tree);
      GATUN_CHECK(chunk.void_payload || !operations_[index].done);
      sent_.push_back(chunk);
    }
    if (sent_.size() > 64) sent_.erase(sent_.begin(), sent_.end() - 64);
    if (count < most) polled_dry_ = true;
    return count;
  }

  void check_timer() {
    if (polled_dry_ && worker_.operations() > 0 && send(1000) == 0) GATUN_CHECK(worker_.poll_timer() != kNever);
    polled_dry_ = false;
  }

  struct Operation {
    uint64_t chunks = 0;
    bool done = false;
    std::set<uint64_t> news;
  };

  Worker::Config config_;
  Worker worker_;
  std::vector<Operation> operations_;
  std::vector<Worker::Chunk> sent_;  // the latest
  TimeNs now_ = 0;
  bool polled_dry_ = false;
};

}  // namespace

std::vector<std::pair<std::string, Bytes>> seeds() {
  // Trees - 1, log2 of the window, first window - 1, reliable, wrap of the chunks, offset, wrap of the operations, offset.
  const Bytes lossy = {1, 2, 3, 0, 1, 8, 1, 3}, reliable = {2, 3, 7, 1, 0, 0, 0, 0};
  Bytes quiet = lossy, refused = lossy, lost = lossy, ring = reliable;
  for (uint8_t i = 0; i < 24; ++i) {
    for (uint8_t byte : {uint8_t{kSubmit}, i, uint8_t{kSend}, uint8_t{15}, uint8_t{kAnswerSent}, i, uint8_t{0}}) {
      quiet.push_back(byte);
      ring.push_back(byte);
    }
    for (uint8_t byte : {uint8_t{kSubmit}, uint8_t{5}, uint8_t{kSend}, uint8_t{7}, uint8_t{kRefuseSent}, i,
                         static_cast<uint8_t>(i % 2), uint8_t{kAnswerSent}, i, uint8_t{1}}) {
      refused.push_back(byte);
    }
    for (uint8_t byte : {uint8_t{kSubmit}, uint8_t{9}, uint8_t{kSend}, uint8_t{3}, uint8_t{kWait}, uint8_t{40},
                         uint8_t{kStatus}, static_cast<uint8_t>(i % 3), uint8_t{0}, uint8_t{kAnswerSent}, i, uint8_t{0}}) {
      lost.push_back(byte);
    }
  }
  return {{"quiet", quiet}, {"refused", refused}, {"lost", lost}, {"reliable", ring}};
}

}  // namespace gatun::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gatun::fuzz::Input input(data, size);
  gatun::fuzz::Harness harness(input);
  for (int steps = 0; !input.empty() && steps < 600; ++steps) harness.step(input);
  harness.finish();
  return 0;
}
