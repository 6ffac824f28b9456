// Computes un-absorbed causal attention, one head at a time: keys and values are expanded in float32 by the
// chain of linear.h; the attention itself runs in double.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/kv_record.h"
#include "kernels/cpu/reference/softmax.h"
#include "kernels/cpu/reference/weight_chain.h"

namespace hadal::cpu::reference {
namespace {

constexpr int kNopeDim = 128;
constexpr int kValueDim = 128;
constexpr int kQkDim = kNopeDim + kKvRopeDim;

bool is_selected(const MlaPrefillParams& p, int64_t token, int64_t position) {
  if (p.selected == nullptr) return true;
  const uint64_t word = p.selected[token * p.selected_stride + position / 64];
  return (word >> (position % 64) & 1U) != 0;
}

void attend_head(const MlaPrefillParams& p, const PrefillSegment& segment, const std::vector<float>& records,
                 int head) {
  const int64_t num_keys = segment.kv_len;
  std::vector<float> keys(num_keys * kQkDim);
  std::vector<float> values(num_keys * kValueDim);
  for (int64_t n = 0; n < kNopeDim + kValueDim; ++n) {
    const WeightColumn column(p.kv_b, /*transposed=*/false, head * int64_t{kNopeDim + kValueDim} + n,
                              p.kv_b.k);
    for (int64_t s = 0; s < num_keys; ++s) {
      const float element = column.chain(&records[s * kKvRowDim]);
      (n < kNopeDim ? keys[s * kQkDim + n] : values[s * kValueDim + n - kNopeDim]) = element;
    }
  }
  for (int64_t s = 0; s < num_keys; ++s) {
    std::copy_n(&records[s * kKvRowDim + kKvLatentDim], kKvRopeDim, &keys[s * kQkDim + kNopeDim]);
  }
  std::vector<double> probabilities;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < segment.q_len; ++i) {
    const int64_t token = segment.q_begin + i;
    const int64_t row = token * p.num_heads + head;
    positions.clear();
    probabilities.clear();
    for (int64_t s = 0; s < segment.kv_len - segment.q_len + i + 1; ++s) {
      if (!is_selected(p, token, s)) continue;
      positions.push_back(s);
      probabilities.push_back(p.softmax_scale * dot(p.q + row * kQkDim, &keys[s * kQkDim], kQkDim));
    }
    if (!positions.empty()) softmax(probabilities);
    for (int d = 0; d < kValueDim; ++d) {
      double sum = 0.0;
      for (size_t j = 0; j < positions.size(); ++j)
        sum += probabilities[j] * values[positions[j] * kValueDim + d];
      p.out[row * kValueDim + d] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void mla_prefill(const MlaPrefillParams& p, Context& ctx) {
  check_scales(p.kv_b);
  HADAL_CHECK(!is_channel_scaled(p.kv_b.type), "prefill does not support channel-scaled kv_b weights");
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
