// Histogram: counts of values by sixteenths of an octave, so a quantile is known to 6 %, in a fixed 8 KiB.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace gatun::net {

class Histogram {
 public:
  void add(uint64_t value) {
    ++counts_[index_of(value)];
    ++count_;
    sum_ += value;
    max_ = std::max(max_, value);
  }

  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }
  // The lower end of the bucket below which `share` of the values are.
  uint64_t quantile(double share) const {
    const auto rank = static_cast<uint64_t>(share * static_cast<double>(count_));
    uint64_t seen = 0;
    for (uint32_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > rank) return lower_end(i);
    }
    return max_;
  }

 private:
  static constexpr uint32_t kSteps = 16;  // per octave
  static uint32_t index_of(uint64_t value) {
    if (value < kSteps) return static_cast<uint32_t>(value);
    const auto shift = static_cast<uint32_t>(std::bit_width(value)) - 5;
    return kSteps * shift + static_cast<uint32_t>(value >> shift);
  }
  static uint64_t lower_end(uint32_t index) {
    if (index < 2 * kSteps) return index;
    return uint64_t{kSteps + index % kSteps} << (index / kSteps - 1);
  }

  std::array<uint64_t, kSteps * 61> counts_{};
  uint64_t count_ = 0, sum_ = 0, max_ = 0;
};

}  // namespace gatun::net
