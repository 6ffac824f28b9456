#include <cmath>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::reference {

void moe(const MoeParams& p, Context& context) {
  if (p.m <= 0) return;
  const int64_t hidden = p.hidden;
  auto* out = static_cast<float*>(context.scratch.allocate(hidden * sizeof(float)));
  for (int64_t t = 0; t < p.m; ++t) {
    const float* x = p.x + t * hidden;
    float* y = p.y + t * hidden;
    for (int64_t i = 0; i < hidden; ++i) y[i] = 0.0F;
    for (int j = 0; j < p.top_k; ++j) {
      const int32_t id = p.topk_ids[t * p.top_k + j];
      HADAL_CHECK(id >= 0 && id < p.num_experts, "expert {} of {}", id, p.num_experts);
      const int64_t expert = id - p.first_expert;
      if (expert < 0 || expert >= static_cast<int64_t>(p.experts.size())) continue;
      if (p.experts[expert].gate.n == 0) continue;
      mlp({.x = x, .y = out, .m = 1, .weights = p.experts[expert]}, context);
      const float weight = p.topk_weights[t * p.top_k + j];
      for (int64_t i = 0; i < hidden; ++i) y[i] = std::fma(weight, out[i], y[i]);
    }
    if (p.shared != nullptr) {
      HADAL_CHECK_GT(p.shared->gate.n, 0);
      mlp({.x = x, .y = out, .m = 1, .weights = *p.shared}, context);
      for (int64_t i = 0; i < hidden; ++i) y[i] += out[i];
    }
  }
}

}  // namespace hadal::cpu::reference
