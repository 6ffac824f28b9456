#include "base/float_types.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::reference {

void embedding(const EmbeddingParams& p, Context& /*ctx*/) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t k = 0; k < p.hidden; ++k) {
      const int64_t at = p.ids[i] * p.hidden + k;
      p.y[i * p.hidden + k] = p.type == EmbeddingType::kF32 ? static_cast<const float*>(p.table)[at]
                                                            : to_float(static_cast<const bf16*>(p.table)[at]);
    }
  }
}

}  // namespace hadal::cpu::reference
