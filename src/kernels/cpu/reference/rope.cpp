#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::reference {

void rope(const RopeParams& p, Context& /*ctx*/) {
  for (int64_t i = 0; i < p.m; ++i) {
    const float* cosines = p.cos_sin + int64_t{p.positions[i]} * 64;
    const float* sines = cosines + 32;
    for (int64_t head = 0; head < p.num_heads; ++head) {
      float* x = p.x + i * p.row_stride + head * p.head_stride;
      for (int pair = 0; pair < 32; ++pair) {
        const float a = x[2 * pair];
        const float b = x[2 * pair + 1];
        x[2 * pair] = a * cosines[pair] - b * sines[pair];
        x[2 * pair + 1] = b * cosines[pair] + a * sines[pair];
      }
    }
  }
}

}  // namespace hadal::cpu::reference
