// Computes out[t, h, :] = Σ_s softmax_s(scale · q[t, h, :] · record(s)) · record(s)[:512] in double.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/cpu/reference/softmax.h"

namespace hadal::cpu::reference {

void mla_decode(const MlaDecodeParams& p, Context& ctx) {
  ctx.pool.parallel_for(p.num_tokens, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t num_keys = p.selected != nullptr ? p.counts[token] : p.kv_len[token];
      std::vector<float> keys(num_keys * kKvRowDim);
      for (int64_t s = 0; s < num_keys; ++s) {
        const int64_t position =
            p.ancestors == nullptr ? s : record_position(p.ancestors[token], num_keys, s);
        const std::byte* record =
            p.selected != nullptr
                ? p.kv.pool + int64_t{p.selected[token * p.selected_stride + s]} * p.kv.layout.row_bytes()
                : record_address(p.kv, p.seq_idx[token], position);
        read_record(record, p.kv.layout, &keys[s * kKvRowDim]);
      }
      std::vector<double> weights(num_keys);
      std::vector<double> sum(kKvLatentDim);
      for (int head = 0; head < p.num_heads; ++head) {
        const int64_t row = token * p.num_heads + head;
        std::fill(sum.begin(), sum.end(), 0.0);
        if (num_keys > 0) {
          for (int64_t s = 0; s < num_keys; ++s) {
            weights[s] = p.softmax_scale * dot(p.q + row * kKvRowDim, &keys[s * kKvRowDim], kKvRowDim);
          }
          softmax(weights);
        }
        for (int64_t s = 0; s < num_keys; ++s) {
          for (int i = 0; i < kKvLatentDim; ++i) sum[i] += weights[s] * keys[s * kKvRowDim + i];
        }
        for (int i = 0; i < kKvLatentDim; ++i) p.out[row * kKvLatentDim + i] = static_cast<float>(sum[i]);
      }
    }
  });
}

}  // namespace hadal::cpu::reference
