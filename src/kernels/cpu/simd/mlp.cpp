#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/gemm_schedule.h"

namespace hadal::cpu::simd {

void mlp(const MlpParams& p, Context& context) {
  if (p.m <= 0) return;
  const auto& [gate, up, down] = p.weights;
  check_mlp_weights(p.weights);
  if (gate.n == 0) {
    std::fill_n(p.y, p.m * gate.k, 0.0F);
    return;
  }
  const Engine& e = engine();
  GemmPlan plan;
  plan.max_m = p.m;
  plan.packs = TaskList<PackJob>(context, 1);
  plan.products = TaskList<Product>(context, 1);
  plan.second = TaskList<Product>(context, 1);
  const float* x = p.x;
  if (p.m > 1) {
    float* packed = scratch_array<float>(context, p.m * gate.k).data();
    add_pack(e, plan.packs, {.x = p.x, .x_stride = gate.k, .m = p.m, .k = gate.k, .packed = packed});
    x = packed;
  }
  float* hidden = scratch_array<float>(context, p.m * gate.n).data();
  add_product(e, plan.products, {.w = gate, .up = &up, .x = x, .y = hidden, .m = p.m});
  add_product(e, plan.second, {.w = down, .x = hidden, .y = p.y, .m = p.m, .y_stride = down.n});
  run_plan(plan, context);
}

}  // namespace hadal::cpu::simd
