#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/weight_chain.h"

namespace hadal::cpu::reference {
namespace {

// Returns the matrix of one head.
MatrixWeight head_weight(const BatchedLinearParams& p, int64_t head) {
  MatrixWeight w = p.w;
  w.data = static_cast<const std::byte*>(w.data) + head * p.head_stride * weight_element_bytes(w.type);
  if (w.scales != nullptr) w.scales += head * p.scale_head_stride;
  return w;
}

}  // namespace

void batched_linear(const BatchedLinearParams& p, Context& context) {
  check_scales(p.w);
  HADAL_CHECK(!is_channel_scaled(p.w.type), "batched products do not support channel-scaled weights");
  if (p.m <= 0) return;
  context.pool.parallel_for(p.num_heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t head = begin; head < end; ++head) {
      const MatrixWeight w = head_weight(p, head);
      for (int64_t n = 0; n < w.n; ++n) {
        const WeightColumn column(w, p.transposed, n, w.k);
        for (int64_t m = 0; m < p.m; ++m) {
          const float* x = p.x + m * p.x_stride + head * p.x_head_stride;
          p.y[m * p.y_stride + head * p.y_head_stride + n] = column.chain(x);
        }
      }
    }
  });
}

}  // namespace hadal::cpu::reference
