#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/silu.h"

namespace hadal::cpu::reference {

void mlp(const MlpParams& p, Context& context) {
  if (p.m <= 0) return;
  const auto& [gate, up, down] = p.weights;
  const int64_t hidden = gate.k;
  const int64_t intermediate = gate.n;
  HADAL_CHECK(up.n == intermediate && up.k == hidden && down.k == intermediate && down.n == hidden,
              "gate [{}, {}], up [{}, {}], down [{}, {}]", gate.n, gate.k, up.n, up.k, down.n, down.k);
  if (intermediate == 0) {
    std::fill_n(p.y, p.m * hidden, 0.0F);
    return;
  }
  auto* g = static_cast<float*>(context.scratch.allocate(p.m * intermediate * sizeof(float)));
  auto* u = static_cast<float*>(context.scratch.allocate(p.m * intermediate * sizeof(float)));
  LinearParams linear_params{
      .x = p.x, .y = g, .m = p.m, .x_stride = hidden, .y_stride = intermediate, .w = gate};
  linear(linear_params, context);
  linear_params.y = u;
  linear_params.w = up;
  linear(linear_params, context);
  for (int64_t i = 0; i < p.m * intermediate; ++i) g[i] = silu_mul(g[i], u[i]);
  linear({.x = g, .y = p.y, .m = p.m, .x_stride = intermediate, .y_stride = hidden, .w = down}, context);
}

}  // namespace hadal::cpu::reference
