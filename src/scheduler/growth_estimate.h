// Estimates how many more pages the running requests will need, which decides how many requests run at once.
// If the estimate is too low, requests are retracted; if it is too high, memory stays unused.
//
// A request is expected to generate `ratio` of the tokens that it may still generate. At most
// kMaxExpectedTokens of them count, because few requests with a huge limit reach it. The ratio starts at
// kInitial, also after every idle time; it falls by (kInitial - kMinimum) / kDecaySteps with every step and
// rises by kRiseOnRetraction with every retraction. The caller's conservativeness multiplies it, and the
// product is at most 1. (The idea and the size of the constants are those of SGLang's new_token_ratio.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "scheduler/request_state.h"

namespace hadal {

class GrowthEstimate {
 public:
  static constexpr double kInitial = 0.7;
  static constexpr double kMinimum = 0.1;
  static constexpr int kDecaySteps = 600;
  static constexpr double kRiseOnRetraction = 0.1;
  static constexpr int64_t kMaxExpectedTokens = 4096;

  explicit GrowthEstimate(double conservativeness) : conservativeness_(conservativeness) {}

  double ratio() const { return std::min(1.0, ratio_ * conservativeness_); }

  void reset() { ratio_ = kInitial; }
  void note_step() { ratio_ = std::max(kMinimum, ratio_ - (kInitial - kMinimum) / kDecaySteps); }
  void note_retraction() { ratio_ = std::min(1.0, ratio_ + kRiseOnRetraction); }

  // Returns the pages that `request` will need beyond the `num_pages` that it has, or is about to get.
  int64_t pages(const RequestState& request, int64_t num_pages) const {
    const int64_t left = request.max_new_tokens - request.num_new_planned();
    const int64_t expected = std::min(left, kMaxExpectedTokens);
    const auto tokens = static_cast<int64_t>(std::ceil(ratio() * static_cast<double>(expected)));
    // The last token of a request is never computed.
    const int64_t end = request.length() + tokens - (tokens == left && left > 0 ? 1 : 0);
    return std::max<int64_t>(num_pages_for(end) - num_pages, 0);
  }

 private:
  double conservativeness_;
  double ratio_ = kInitial;
};

}  // namespace hadal
