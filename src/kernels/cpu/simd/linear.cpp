#include <span>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/gemm_schedule.h"

namespace hadal::cpu::simd {
void linear_group(std::span<const LinearParams> group, Context& context) {
  if (group.empty() || group[0].m <= 0) return;
  const Engine& e = engine();
  const LinearParams& first = group[0];
  const int64_t m = first.m;
  GemmPlan plan;
  plan.max_m = m;
  plan.packs = TaskList<PackJob>(context, 1);
  plan.products = TaskList<Product>(context, static_cast<int64_t>(group.size()));
  const float* x = first.x;
  if (m > 1) {
    float* packed = scratch_array<float>(context, m * first.w.k).data();
    add_pack(e, plan.packs,
             {.x = first.x, .x_stride = first.x_stride, .m = m, .k = first.w.k, .packed = packed});
    x = packed;
  }
  for (const LinearParams& p : group) {
    HADAL_CHECK(p.x == first.x && p.m == m && p.x_stride == first.x_stride && p.w.k == first.w.k,
                "the products of a group share x");
    check_weight(p.w);
    add_product(e, plan.products, {.w = p.w, .x = x, .y = p.y, .m = m, .y_stride = p.y_stride});
  }
  run_plan(plan, context);
}

void linear(const LinearParams& p, Context& context) {
  if (p.w.n == 0) return;
  linear_group({&p, 1}, context);
}

}  // namespace hadal::cpu::simd
