#include "protocols/congestion.h"

#include <algorithm>

#include "protocols/mutation.h"

namespace gatun {
namespace {
constexpr double kGain = 1.0 / 16;  // g of DCTCP
}

CongestionWindow::CongestionWindow(uint32_t initial_chunks, uint32_t limit_chunks)
    : cwnd_(std::clamp<double>(initial_chunks, 1, std::max(1u, limit_chunks))),
      limit_(std::max(1u, limit_chunks)),
      threshold_(limit_) {}

void CongestionWindow::on_result(uint64_t seq, uint64_t next_seq, bool congested) {
  ++acked_;
  marked_ += congested;
  if (congested) threshold_ = std::min(threshold_, cwnd_);
  if (cwnd_ < threshold_) {
    cwnd_ += 1;  // slow start: doubles per round trip
  } else {
    cwnd_ += 1 / cwnd_;
  }
  cwnd_ = std::min(cwnd_, limit_);
  if (seq < window_end_) return;

  // The last chunk of the measured window is back: one update of alpha and at most one reduction.
  alpha_ += kGain * (static_cast<double>(marked_) / acked_ - alpha_);
  if (marked_ > 0) {
    cwnd_ = std::max(mutated(Mutation::kWindowZero) ? 0.0 : 1.0, cwnd_ * (1 - alpha_ / 2));
    threshold_ = cwnd_;
  }
  acked_ = marked_ = 0;
  window_end_ = next_seq;
}

void CongestionWindow::on_loss(uint64_t seq, uint64_t next_seq) {
  if (seq < recovery_end_) return;
  recovery_end_ = next_seq;
  cwnd_ = std::max(1.0, cwnd_ / 2);
  threshold_ = cwnd_;
}

void CongestionWindow::on_timeout() {
  threshold_ = std::max(2.0, cwnd_ / 2);
  threshold_ = std::min(threshold_, limit_);
  cwnd_ = 1;
}

void RttEstimator::on_sample(int64_t rtt_ns) {
  if (srtt_ == 0) {
    srtt_ = std::max<int64_t>(1, rtt_ns);
    rttvar_ = rtt_ns / 2;
  } else {
    const int64_t error = rtt_ns - srtt_;
    rttvar_ += ((error < 0 ? -error : error) - rttvar_) / 4;
    srtt_ = std::max<int64_t>(1, srtt_ + error / 8);
  }
  const int64_t before = rto_;
  rto_ = std::clamp(srtt_ + 4 * rttvar_, rto_min_, rto_max_);
  if (mutated(Mutation::kTimeoutNeverDown)) rto_ = std::max(rto_, before);
}

int64_t RttEstimator::rto_ns(uint32_t repeats) const {
  const uint32_t doublings = std::min(repeats, 16u);
  return std::min(rto_max_, rto_ << doublings);
}

}  // namespace gatun
