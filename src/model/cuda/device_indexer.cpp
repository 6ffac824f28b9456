// Implements V3.2's indexer in a layer's forward pass (kernels/params/indexer.h has the numerics). It stores
// an index key for every token, and selects keys for rows that see more than index_topk of them. If a decode
// row may see so many keys, all decode rows are passed to the kernels, which find the rows that select by
// their lengths, so that a graph serves any lengths. For prompt rows the plan names those that select
// (prefill_plan.h).
#include "model/cuda/device_forward.h"

namespace hadal {

DeviceRows DeviceForward::rows_for_attention(const DeviceRows& x, const DeviceAttention& weights) const {
  DeviceRows rows = rows_for(x, weights.qkv_a);
  if (weights.indexer.num_heads > 0) rows.x = x.x;  // weights_proj reads 16 bits in any case
  return rows;
}

void DeviceForward::write_index_keys(const DeviceIndexer& indexer, std::byte* index_pool, const Value16* qkv,
                                     int64_t qkv_width) {
  const double bytes = static_cast<double>(num_tokens_) * (kIndexHeadDim * 2.0 + kKvIndexBytesE4M3);
  op("index_write", bytes, 0.0, [&] {
    cuda::index_write({.k = reinterpret_cast<const bf16*>(qkv + indexer.k_begin),
                       .k_stride = qkv_width,
                       .m = num_tokens_,
                       .norm_weight = indexer.norm_weight,
                       .norm_bias = indexer.norm_bias,
                       .positions = step_.positions,
                       .cos_sin = weights_.cos_sin,
                       .slots = step_.slots,
                       .pool = index_pool},
                      launch_);
  });
}

DeviceForward::IndexQueries DeviceForward::index_queries(const DeviceIndexer& indexer, const DeviceRows& x,
                                                         const DeviceRows& q_latent, int64_t q_width) {
  const bool prompts_select = step_.prefill != nullptr && !step_.prefill->selecting_passes.empty();
  if (!prompts_select && (num_decode_ == 0 || !step_.may_select)) return {};
  auto* q = arena_.array<Value16>(num_tokens_ * indexer.wq_b.n);
  auto* w = arena_.array<float>(num_tokens_ * indexer.num_heads);
  // The host knows which rows of prompts select, but in a graph only the device knows which decode rows do.
  cuda::LengthGate gate;
  if (!prompts_select) {
    gate = {.lengths = step_.decode_kv_len,
            .count = static_cast<int32_t>(num_decode_),
            .limit = static_cast<int32_t>(config_.index_topk),
            .settled = settled_};
  }
  linear("index_wq_b", q_latent, q_width, indexer.wq_b, q, nullptr, num_tokens_, nullptr, gate);
  linear("index_weights", {.x = x.x, .x_quantized = {}}, hidden_, indexer.weights_proj, nullptr, w,
         num_tokens_, nullptr, gate);
  return {.q = q, .w = w};
}

cuda::DeviceSelection DeviceForward::select_keys(const DeviceIndexer& indexer, const std::byte* index_pool,
                                                 const IndexQueries& queries, int64_t first_row, int64_t m,
                                                 const int32_t* seq_idx, const int32_t* kv_len,
                                                 bool is_prompt) {
  auto* slots = arena_.array<int32_t>(m * config_.index_topk);
  auto* counts = arena_.array<int32_t>(m);
  run_selection(indexer, index_pool, queries, first_row, m, seq_idx, kv_len, is_prompt,
                {.slots = slots, .counts = counts});
  return {.slots = slots,
          .counts = counts,
          .num_slots = cache_.num_pages() * kPageSize,
          .all_rows = is_prompt || step_.all_select};
}

void DeviceForward::run_selection(const DeviceIndexer& indexer, const std::byte* index_pool,
                                  const IndexQueries& queries, int64_t first_row, int64_t m,
                                  const int32_t* seq_idx, const int32_t* kv_len, bool is_prompt,
                                  const SelectionOutput& out) {
  const auto topk = static_cast<int>(config_.index_topk);
  const DeviceArena::Scope scope(arena_);
  auto* codes = arena_.array<fp8_e4m3>(m * indexer.wq_b.n);
  auto* weights = arena_.array<float>(m * indexer.num_heads);
  // The table of positions has a row for every position, so no row of the step sees more keys than it has
  // rows. The shape does not depend on the step, which a graph requires. Bits are for prompts alone, whose
  // rows have at most the keys for which there are bits.
  const cuda::IndexSelectShape shape{
      .num_rows = m,
      .num_heads = indexer.num_heads,
      .topk = topk,
      .most_keys = out.bits_words > 0 ? out.bits_words * 64 : weights_.max_positions,
      .rows_share_keys = is_prompt};
  std::byte* const workspace = arena_.allocate(cuda::index_select_workspace_bytes(shape));
  const double row_bytes = static_cast<double>(m * indexer.wq_b.n);
  op("index_query", row_bytes * 3.0, 0.0, [&] {
    cuda::index_query({.q = reinterpret_cast<const bf16*>(queries.q + first_row * indexer.wq_b.n),
                       .q_stride = indexer.wq_b.n,
                       .w = queries.w + first_row * indexer.num_heads,
                       .w_stride = indexer.num_heads,
                       .m = m,
                       .num_heads = indexer.num_heads,
                       .positions = step_.positions + first_row,
                       .cos_sin = weights_.cos_sin,
                       .kv_len = kv_len,
                       .topk = topk,
                       .codes = codes,
                       .weights = weights},
                      launch_);
  });
  op("index_select", row_bytes, 0.0, [&] {
    cuda::index_select({.shape = shape,
                        .q = codes,
                        .w = weights,
                        .pool = index_pool,
                        .page_table = step_.page_table,
                        .page_table_stride = step_.page_table_stride,
                        .seq_idx = seq_idx,
                        .kv_len = kv_len,
                        .slots = out.slots,
                        .counts = out.counts,
                        .bits = out.bits,
                        .bits_stride = out.bits_words,
                        .workspace = workspace},
                       launch_);
  });
}

DeviceForward::DecodePlan DeviceForward::selecting_plan(int64_t num_rows) const {
  DecodePlan made{.shape = plan_shape(num_rows, 1, 0)};
  made.shape.index_topk = static_cast<int>(config_.index_topk);
  made.scratch_bytes = exec_.measure_only ? cuda::mla_decode_most_bytes(made.shape).scratch
                                          : cuda::mla_decode_scratch_bytes(made.shape);
  if (!exec_.measure_only) made.geometry = cuda::decode_geometry(made.shape);
  return made;
}

void DeviceForward::selecting_attention(const DeviceAttention& weights, std::byte* pool,
                                        const std::byte* index_pool, const IndexQueries& queries,
                                        const Value16* q, int64_t q_stride, Value16* y, uint64_t* bits) {
  const int64_t bits_words = step_.prefill->bits_words;
  const int64_t heads_width = heads_ * kVHeadDim;
  for (const SelectingPass& pass : step_.prefill->selecting_passes) {
    const DeviceArena::Scope scope(arena_);
    const int64_t m = pass.num_rows;
    const int32_t* const seq_idx = step_.selecting_seq_idx + pass.first;
    const int32_t* const kv_len = step_.selecting_kv_len + pass.first;
    if (pass.as_bits) {
      run_selection(weights.indexer, index_pool, queries, pass.first_row, m, seq_idx, kv_len, true,
                    {.bits = bits + pass.first_row * bits_words, .bits_words = bits_words});
      continue;
    }
    const DecodePlan plan = selecting_plan(m);
    const cuda::DeviceSelection selection =
        select_keys(weights.indexer, index_pool, queries, pass.first_row, m, seq_idx, kv_len, true);
    const auto keys = static_cast<double>(m * config_.index_topk);
    absorbed_attention(
        weights, pool,
        {.q = q + pass.first_row * q_stride,
         .q_stride = q_stride,
         .m = m,
         .positions = step_.positions + pass.first_row,
         .fused_rope = exec_.fusion,
         .plan = &plan,
         .seq_idx = seq_idx,
         .kv_len = kv_len,
         .selection = selection,
         .pairs = keys,
         .keys = keys},
        {.kv_b = weights.kv_b, .y = y + pass.first_row * heads_width, .y_stride = heads_width});
  }
}

}  // namespace hadal
