// Chooses the keys of highest score by sorting all positions.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/index_key.h"
#include "kernels/cpu/reference/weight_chain.h"

namespace hadal::cpu::reference {
namespace {

float score(const IndexSelectParams& p, int64_t token, int64_t slot) {
  float key[kIndexHeadDim];
  const float scale = load_index_key(p.keys.pool, p.keys.layout, slot, key);
  float sum = 0.0F;
  for (int64_t row = token * p.num_heads; row < (token + 1) * p.num_heads; ++row) {
    const float product = fma_chain(0.0F, p.q + row * kIndexHeadDim, key, kIndexHeadDim);
    const float positive = product < 0.0F ? 0.0F : product;  // NaN stays
    sum = std::fma(positive, p.w[row], sum);
  }
  return sum * scale;
}

void select(const IndexSelectParams& p, int64_t token) {
  const int64_t num_keys = p.kv_len[token];
  const int64_t count = std::min<int64_t>(p.topk, num_keys);
  const int32_t* page_ids = p.keys.page_table + p.seq_idx[token] * p.keys.page_table_stride;
  const auto slot_of = [&](int64_t position) {
    return page_ids[position / kPageSize] * int64_t{kPageSize} + position % kPageSize;
  };
  std::vector<int32_t> positions(num_keys);
  std::iota(positions.begin(), positions.end(), 0);
  if (count < num_keys) {
    std::vector<float> scores(num_keys);
    for (int64_t s = 0; s < num_keys; ++s) scores[s] = score(p, token, slot_of(s));
    std::stable_sort(positions.begin(), positions.end(), [&](int32_t a, int32_t b) {
      return scores[a] > scores[b] || (std::isnan(scores[b]) && !std::isnan(scores[a]));
    });
    positions.resize(count);
    std::sort(positions.begin(), positions.end());
  }
  if (p.bits != nullptr) {
    uint64_t* words = p.bits + token * p.bits_stride;
    std::fill_n(words, p.bits_stride, 0);
    for (int32_t position : positions) words[position / 64] |= uint64_t{1} << (position % 64);
    return;
  }
  int32_t* slots = p.slots + token * p.topk;
  std::fill(slots + count, slots + p.topk, -1);
  for (int64_t i = 0; i < count; ++i) slots[i] = static_cast<int32_t>(slot_of(positions[i]));
  p.counts[token] = static_cast<int32_t>(count);
}

}  // namespace

void index_select(const IndexSelectParams& p, Context& ctx) {
  ctx.pool.parallel_for(p.num_tokens, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t token = begin; token < end; ++token) select(p, token);
  });
}

}  // namespace hadal::cpu::reference
