// CongestionWindow: how many chunks one worker may have in flight on one tree.
//
// The law is DCTCP's (SIGCOMM 2010; Linux tcp_dctcp): slow start until the first mark, then one chunk more per window; once
// per window alpha <- (1 - g) alpha + g F with F the marked fraction and g = 1/16, and with any mark
// cwnd <- cwnd (1 - alpha/2). Never below one chunk, never above the limit. Another law is another class of this shape.
#pragma once

#include <cstdint>

namespace gatun {

class CongestionWindow {
 public:
  CongestionWindow(uint32_t initial_chunks, uint32_t limit_chunks);

  uint32_t chunks() const { return static_cast<uint32_t>(cwnd_); }

  // A result arrived that acknowledges one chunk. seq orders it; next_seq is the first that has not been sent.
  void on_result(uint64_t seq, uint64_t next_seq, bool congested);
  // A chunk was lost (found by later results): at most one reduction per window.
  void on_loss(uint64_t seq, uint64_t next_seq);
  // Nothing came back for a whole timeout: start again from one chunk.
  void on_timeout();

 private:
  double cwnd_;
  double limit_;
  double threshold_;       // slow start below it
  double alpha_ = 1.0;
  uint64_t window_end_ = 0;  // the window being measured ends with this chunk
  uint64_t recovery_end_ = 0;
  uint32_t acked_ = 0, marked_ = 0;
};

// Round-trip estimate and retransmission timeout: RFC 6298, with the minimum as a setting.
class RttEstimator {
 public:
  RttEstimator(int64_t rto_initial_ns, int64_t rto_min_ns, int64_t rto_max_ns)
      : rto_(rto_initial_ns), rto_min_(rto_min_ns), rto_max_(rto_max_ns) {}
  void on_sample(int64_t rtt_ns);
  // The answer to a chunk that was repeated measures nothing, but the timeout that was long enough for it stays until the
  // next sample (Karn's second rule): else a path slower than the timeout would repeat every chunk for ever.
  void on_backed_off(uint32_t timeouts) { rto_ = rto_ns(timeouts); }
  int64_t rto_ns(uint32_t repeats) const;  // doubled per repeat, at most the maximum
  int64_t srtt_ns() const { return srtt_; }

 private:
  int64_t srtt_ = 0, rttvar_ = 0;
  int64_t rto_, rto_min_, rto_max_;
};

}  // namespace gatun
