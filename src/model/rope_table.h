// RopeTable holds cosines and sines of every position, including YaRN's frequency ramp (arXiv 2309.00071
// §3.2) and magnitude. The table grows on demand, because most requests are far shorter than 163,840
// positions, and computing all of them would delay the start.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace hadal {

class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config);

  // Returns [≥ num_positions, 64]: 32 cosines, then 32 sines per position; valid until the next call. Only
  // the engine thread may call it.
  const float* up_to(int64_t num_positions);

  // Writes rows [first, first + count) of the same table to `out` [count, 64]. Any thread may call it.
  void write(int64_t first, int64_t count, float* out) const;

  const std::vector<double>& inverse_frequencies() const { return inv_freq_; }  // [32]

 private:
  std::vector<double> inv_freq_;
  double magnitude_ = 1.0;  // m(f, mscale) / m(f, mscale_all_dim)
  std::vector<float> cos_sin_;
};

// Returns m(factor, mscale) = 0.1 · mscale · ln(factor) + 1; 1 when factor ≤ 1.
double yarn_mscale(double factor, double mscale);

}  // namespace hadal
