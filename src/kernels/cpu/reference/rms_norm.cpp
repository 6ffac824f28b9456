#include <cmath>

#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::reference {

void rms_norm(const RmsNormParams& p, Context& /*ctx*/) {
  constexpr int kPartials = 16;
  for (int64_t i = 0; i < p.m; ++i) {
    const float* x = p.x + i * p.x_stride;
    float* y = p.y + i * p.y_stride;
    if (p.residual != nullptr) {
      float* residual = p.residual + i * p.n;
      for (int64_t k = 0; k < p.n; ++k) residual[k] += x[k];
      x = residual;
    }
    double partials[kPartials] = {};
    for (int64_t k = 0; k < p.n; ++k) partials[k % kPartials] += static_cast<double>(x[k]) * x[k];
    double sum = 0.0;
    for (double partial : partials) sum += partial;
    const auto factor =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(p.n) + static_cast<double>(p.eps)));
    for (int64_t k = 0; k < p.n; ++k) y[k] = x[k] * factor * p.weight[k];
  }
}

}  // namespace hadal::cpu::reference
