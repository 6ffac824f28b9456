// Makes index keys: LayerNorm, rope by halves, Hadamard and rounding.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/index_key.h"

namespace hadal::cpu::reference {
namespace {

// Returns Σ term(i) over 128 values in 16 partial sums.
template <typename Term>
double sum_in_partials(Term term) {
  constexpr int kPartials = 16;
  double partials[kPartials] = {};
  for (int i = 0; i < kIndexHeadDim; ++i) partials[i % kPartials] += term(i);
  double sum = 0.0;
  for (double partial : partials) sum += partial;
  return sum;
}

void layer_norm(const float* x, const IndexWriteParams& p, float* y) {
  const double mean = sum_in_partials([&](int i) { return static_cast<double>(x[i]); }) / kIndexHeadDim;
  const double variance =
      sum_in_partials([&](int i) { return (x[i] - mean) * (x[i] - mean); }) / kIndexHeadDim;
  const double factor = 1.0 / std::sqrt(variance + static_cast<double>(p.norm_eps));
  for (int i = 0; i < kIndexHeadDim; ++i) {
    y[i] = static_cast<float>((x[i] - mean) * factor * p.norm_weight[i] + p.norm_bias[i]);
  }
}

}  // namespace

void index_write(const IndexWriteParams& p, Context& /*ctx*/) {
  for (int64_t i = 0; i < p.m; ++i) {
    float key[kIndexHeadDim];
    layer_norm(p.k + i * p.k_stride, p, key);
    rotate_halves(p.cos_sin + int64_t{p.positions[i]} * kIndexRopeDim, key);
    hadamard(key);
    store_index_key(key, p.layout, p.slots[i], p.pool);
  }
}

}  // namespace hadal::cpu::reference
