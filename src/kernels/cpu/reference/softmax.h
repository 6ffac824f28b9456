// Computes plain softmax-weighted sums in double, for both attention references.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace hadal::cpu::reference {

// Replaces scores by softmax(scores), in double.
inline void softmax(std::vector<double>& scores) {
  const double peak = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) {
    score = std::exp(score - peak);
    sum += score;
  }
  for (double& score : scores) score /= sum;
}

inline double dot(const float* a, const float* b, int count) {
  double sum = 0.0;
  for (int i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace hadal::cpu::reference
