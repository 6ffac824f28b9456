#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/weight_chain.h"

namespace hadal::cpu::reference {

void linear(const LinearParams& p, Context& context) {
  if (p.m <= 0 || p.w.n == 0) return;
  check_scales(p.w);
  context.pool.parallel_for(p.w.n, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      const WeightColumn column(p.w, /*transposed=*/false, n, p.w.k);
      for (int64_t m = 0; m < p.m; ++m) p.y[m * p.y_stride + n] = column.chain(p.x + m * p.x_stride);
    }
  });
}

}  // namespace hadal::cpu::reference
