// Un-absorbed causal attention, a head at a time: keys and values are expanded in float32 by the chain of
// linear.h, the attention itself runs in double.
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/cpu/reference/softmax.h"

namespace hadal::cpu::reference {
namespace {

constexpr int kNopeDim = 128;
constexpr int kValueDim = 128;
constexpr int kQkDim = kNopeDim + kKvRopeDim;

// Row n of a weight to float32 values, scales not applied.
void read_weight_row(const MatrixWeight& w, int64_t n, float* out) {
  for (int64_t k = 0; k < w.k; ++k) {
    const int64_t at = n * w.row_stride + k;
    switch (w.type) {
      case WeightType::kF32:
        out[k] = static_cast<const float*>(w.data)[at];
        break;
      case WeightType::kBF16:
        out[k] = to_float(static_cast<const bf16*>(w.data)[at]);
        break;
      case WeightType::kFp8Block:
        out[k] = to_float(static_cast<const fp8_e4m3*>(w.data)[at]);
        break;
    }
  }
}

// One output element of the linear of linear.h.
float chain(const MatrixWeight& w, int64_t n, const float* weights, const float* x) {
  if (w.type != WeightType::kFp8Block) {
    float sum = 0.0F;
    for (int64_t k = 0; k < w.k; ++k) sum = std::fma(x[k], weights[k], sum);
    return sum;
  }
  float sum = 0.0F;
  for (int64_t block = 0; block * 128 < w.k; ++block) {
    float block_sum = 0.0F;
    for (int64_t k = block * 128; k < std::min(w.k, block * 128 + 128); ++k) {
      block_sum = std::fma(x[k], weights[k], block_sum);
    }
    sum = std::fma(block_sum, w.scales[n / 128 * w.scale_stride + block], sum);
  }
  return sum;
}

void attend_head(const MlaPrefillParams& p, const PrefillSegment& segment, const std::vector<float>& records,
                 int head) {
  const int64_t num_keys = segment.kv_len;
  std::vector<float> keys(num_keys * kQkDim);
  std::vector<float> values(num_keys * kValueDim);
  std::vector<float> weights(p.kv_b.k);
  for (int64_t n = 0; n < kNopeDim + kValueDim; ++n) {
    const int64_t row = head * int64_t{kNopeDim + kValueDim} + n;
    read_weight_row(p.kv_b, row, weights.data());
    for (int64_t s = 0; s < num_keys; ++s) {
      const float element = chain(p.kv_b, row, weights.data(), &records[s * kKvRowDim]);
      (n < kNopeDim ? keys[s * kQkDim + n] : values[s * kValueDim + n - kNopeDim]) = element;
    }
  }
  for (int64_t s = 0; s < num_keys; ++s) {
    std::copy_n(&records[s * kKvRowDim + kKvLatentDim], kKvRopeDim, &keys[s * kQkDim + kNopeDim]);
  }
  std::vector<double> probabilities;
  for (int64_t i = 0; i < segment.q_len; ++i) {
    const int64_t visible = segment.kv_len - segment.q_len + i + 1;
    const int64_t row = (segment.q_begin + i) * p.num_heads + head;
    probabilities.resize(visible);
    for (int64_t s = 0; s < visible; ++s) {
      probabilities[s] = p.softmax_scale * dot(p.q + row * kQkDim, &keys[s * kQkDim], kQkDim);
    }
    softmax(probabilities);
    for (int d = 0; d < kValueDim; ++d) {
      double sum = 0.0;
      for (int64_t s = 0; s < visible; ++s) sum += probabilities[s] * values[s * kValueDim + d];
      p.out[row * kValueDim + d] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void mla_prefill(const MlaPrefillParams& p, Context& ctx) {
  for (int i = 0; i < p.num_segments; ++i) {
    const PrefillSegment& segment = p.segments[i];
    std::vector<float> records(int64_t{segment.kv_len} * kKvRowDim);
    for (int64_t s = 0; s < segment.kv_len; ++s) {
      read_record(record_address(p.kv, segment.seq_idx, s), p.kv.layout, &records[s * kKvRowDim]);
    }
    ctx.pool.parallel_for(p.num_heads, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
      for (int64_t head = begin; head < end; ++head) {
        attend_head(p, segment, records, static_cast<int>(head));
      }
    });
  }
}

}  // namespace hadal::cpu::reference
