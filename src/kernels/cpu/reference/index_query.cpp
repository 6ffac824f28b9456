// Makes index queries and the weights of their heads, in place: rope by halves, Hadamard and rounding.
#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/index_key.h"

namespace hadal::cpu::reference {

void index_query(const IndexQueryParams& p, Context& /*ctx*/) {
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.num_heads) * kIndexHeadDim));
  for (int64_t row = 0; row < p.m * p.num_heads; ++row) {
    float* q = p.q + row * kIndexHeadDim;
    rotate_halves(p.cos_sin + int64_t{p.positions[row / p.num_heads]} * kIndexRopeDim, q);
    hadamard(q);
    p.w[row] *= factor;
    if (p.layout != KvIndex::kE4M3) continue;
    const float scale = power_of_two_scale(q, kIndexHeadDim);
    for (int i = 0; i < kIndexHeadDim; ++i) q[i] = to_float(to_fp8_e4m3(q[i] / scale));
    p.w[row] *= scale;
  }
}

}  // namespace hadal::cpu::reference
