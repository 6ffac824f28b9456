#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"

namespace hadal::cpu::reference {

void kv_write(const KvWriteParams& p, Context& /*ctx*/) {
  for (int64_t i = 0; i < p.m; ++i) {
    write_record(p.latent + i * p.latent_stride, p.k_rope + i * p.k_rope_stride, p.layout,
                 p.pool + p.slots[i] * p.layout.row_bytes());
  }
}

}  // namespace hadal::cpu::reference
