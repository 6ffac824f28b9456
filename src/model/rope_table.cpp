#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hadal {
namespace {

constexpr int kPairs = kQkRopeHeadDim / 2;
constexpr int64_t kGrowth = 4096;  // positions added at a time: computing their sines takes about 5 ms

// Returns the (fractional) pair index whose wave makes `rotations` turns over the original context length.
double pair_of_rotations(double rotations, double theta, double original_length) {
  return kQkRopeHeadDim * std::log(original_length / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(theta));
}

}  // namespace

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeTable::RopeTable(const ModelConfig& config) : inv_freq_(kPairs) {
  for (int i = 0; i < kPairs; ++i) {
    inv_freq_[i] = std::pow(config.rope_theta, -2.0 * i / kQkRopeHeadDim);
  }
  if (!config.rope_scaling) return;
  const RopeScaling& yarn = *config.rope_scaling;
  const auto original = static_cast<double>(yarn.original_max_position_embeddings);
  const double low =
      std::max(std::floor(pair_of_rotations(yarn.beta_fast, config.rope_theta, original)), 0.0);
  double high = std::min(std::ceil(pair_of_rotations(yarn.beta_slow, config.rope_theta, original)),
                         static_cast<double>(kQkRopeHeadDim - 1));
  if (high <= low) high = low + 0.001;
  for (int i = 0; i < kPairs; ++i) {
    // Fast waves keep their frequency, slow ones are interpolated, and a ramp joins the two.
    const double slow = std::clamp((i - low) / (high - low), 0.0, 1.0);
    inv_freq_[i] = inv_freq_[i] / yarn.factor * slow + inv_freq_[i] * (1.0 - slow);
  }
  magnitude_ = yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
}

const float* RopeTable::up_to(int64_t num_positions) {
  const auto have = static_cast<int64_t>(cos_sin_.size()) / kQkRopeHeadDim;
  if (num_positions > have) {
    const int64_t want = (num_positions + kGrowth - 1) / kGrowth * kGrowth;
    cos_sin_.resize(want * kQkRopeHeadDim);
    write(have, want - have, cos_sin_.data() + have * kQkRopeHeadDim);
  }
  return cos_sin_.data();
}

void RopeTable::write(int64_t first, int64_t count, float* out) const {
  for (int64_t position = first; position < first + count; ++position, out += kQkRopeHeadDim) {
    for (int i = 0; i < kPairs; ++i) {
      const double angle = static_cast<double>(position) * inv_freq_[i];
      out[i] = static_cast<float>(std::cos(angle) * magnitude_);
      out[kPairs + i] = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
}

}  // namespace hadal
