// Implements the attention half of a layer. Prompt rows attend un-absorbed over keys and values expanded from
// the cache. Decode rows, and a few prompt rows after a long prefix, attend absorbed over the cache itself,
// and so do rows for which an indexer selects keys (device_indexer.cpp). Every key is read back from the
// cache after rounding to its format.
#include <algorithm>

#include "model/cuda/device_forward.h"

namespace hadal {
namespace {

// Returns the rows from `first` on. Scales are stored by column, so the stride of a column stays the same.
cuda::QuantizedRows rows_from(cuda::QuantizedRows rows, int64_t first) {
  if (rows) {
    rows.codes += first * rows.stride;
    rows.scales += first;
  }
  return rows;
}

}  // namespace

cuda::MlaPlanShape DeviceForward::plan_shape(int64_t num_seqs, int q_len, int64_t most_keys) const {
  return {.num_seqs = num_seqs,
          .q_len = q_len,
          .num_heads = static_cast<int>(heads_),
          .num_sms = launch_.num_sms,
          .layout = cache_.layout(),
          .most_keys = most_keys};
}

cuda::MlaPlanShape DeviceForward::absorbed_shape(const AbsorbedPass& pass) const {
  const PrefillPlan& plan = *step_.prefill;
  int64_t most_keys = 0;
  for (int32_t i = 0; i < pass.num_groups && !exec_.measure_only; ++i)
    most_keys = std::max<int64_t>(most_keys, plan.absorbed_kv_len[pass.first_group + i]);
  return plan_shape(pass.num_groups, plan.group_rows, most_keys);
}

DeviceForward::DecodePlan DeviceForward::make_plan(const cuda::MlaPlanShape& shape, const int32_t* kv_len) {
  DecodePlan made{.shape = shape};
  if (exec_.measure_only) {
    const cuda::MlaDecodeBytes most = cuda::mla_decode_most_bytes(shape);
    made.plan = arena_.allocate(most.plan);
    made.scratch_bytes = most.scratch;
    return made;
  }
  made.geometry = cuda::decode_geometry(shape);
  made.plan = arena_.allocate(cuda::decode_plan_bytes(made.geometry));
  made.scratch_bytes = cuda::mla_decode_scratch_bytes(shape);
  op("mla_plan", 0.0, 0.0, [&] { cuda::mla_decode_plan(made.geometry, kv_len, made.plan, launch_); });
  return made;
}

// This is called once per step, because every layer uses the same plans.
void DeviceForward::plan_attention() {
  if (num_decode_ > 0 && step_.all_select) {
    plan_ = selecting_plan(num_decode_);
  } else if (num_decode_ > 0) {
    cuda::MlaPlanShape shape = plan_shape(num_decode_, 1, step_.most_keys);
    shape.in_step = true;
    shape.index_topk = step_.may_select ? static_cast<int>(config_.index_topk) : 0;
    plan_ = make_plan(shape, step_.decode_kv_len);
  }
  if (num_prefill_ == 0) return;
  const PrefillPlan& prefill = *step_.prefill;
  for (const AbsorbedPass& pass : prefill.absorbed_passes)
    absorbed_plans_.push_back(make_plan(absorbed_shape(pass), step_.absorbed_kv_len + pass.first_group));
}

void DeviceForward::attention(const DeviceAttention& weights, int64_t layer_idx, const DeviceRows& x,
                              Value16* out) {
  const DeviceArena::Scope scope(arena_);
  // From the second layer on, the step's inputs (lengths, page tables, positions), its plans, and all records
  // but those that this layer's mla_prologue writes are complete before any kernel of this layer can begin.
  // The reason is as follows. Kernels begin in stream order, each when every block of the previous kernel has
  // called pdl_launch_dependents or ended. Many kernels call it before they wait, so in general the start of
  // a kernel does not show which kernels have ended. But the attention kernels call it only after pdl_wait
  // (mla_decode, mla_prefill) or not at all (the plain kernels). So when a kernel after the attention of the
  // previous layer begins, everything before that attention has ended: copies of inputs and pages, updates of
  // page tables, plans, earlier steps. Launches without the attribute (copies, libraries) wait for everything
  // in any case. mla_prologue writes records of the step's own tokens; decode_settled is false if a decode
  // row has other tokens of the step among its keys. The indexer's kernels write only index keys, queries and
  // selections, which are not treated as settled. All of them wait before they read anything but weights. The
  // kernels of attention over selections allow the next kernel to begin only after pdl_wait, like the other
  // attention kernels.
  settled_ = layer_idx > 0;
  const bool low_rank = weights.q_b.data != nullptr;
  const int64_t qkv_width = weights.qkv_a.n;
  const int64_t heads_width = heads_ * kVHeadDim;
  const int64_t cache_layer = first_cache_layer_ + layer_idx;
  std::byte* const pool = cache_.num_pages() > 0 ? cache_.layer(cache_layer) : nullptr;
  std::byte* const index_pool = cache_.num_pages() > 0 ? cache_.index_layer(cache_layer) : nullptr;

  auto* qkv = arena_.array<Value16>(num_tokens_ * qkv_width);
  linear("qkv_a", x, hidden_, weights.qkv_a, qkv, nullptr, num_tokens_);

  DeviceRows q_latent;
  const bool indexed = weights.indexer.num_heads > 0;
  if (low_rank) {
    // The indexer's wq_b reads the latent too, and its type may differ from that of q_b.
    const bool codes = has_scales(weights.q_b.type) || (indexed && has_scales(weights.indexer.wq_b.type));
    const bool plain = !has_scales(weights.q_b.type) || (indexed && !has_scales(weights.indexer.wq_b.type));
    q_latent = allocate_rows(num_tokens_, weights.q_width, codes, plain);
  }
  const bool separate_quantize = q_latent.x_quantized && !exec_.fusion;
  op("mla_prologue", static_cast<double>(num_tokens_) * (2.0 * static_cast<double>(qkv_width) + 4000.0), 0.0,
     [&] {
       cuda::mla_prologue({.x = qkv,
                           .x_stride = qkv_width,
                           .m = num_tokens_,
                           .q_width = weights.q_width,
                           .kv_begin = weights.kv_a_begin,
                           .q_norm = weights.q_a_norm,
                           .kv_norm = weights.kv_a_norm,
                           .eps = eps_,
                           .q = q_latent.x,
                           .q_quantized = separate_quantize ? cuda::QuantizedRows{} : q_latent.x_quantized,
                           .positions = step_.positions,
                           .cos_sin = weights_.cos_sin,
                           .slots = step_.slots,
                           .pool = pool,
                           .layout = cache_.layout()},
                          launch_);
     });
  if (separate_quantize) quantize(q_latent.x, num_tokens_, weights.q_width, q_latent.x_quantized);

  if (indexed) write_index_keys(weights.indexer, index_pool, qkv, qkv_width);
  const IndexQueries queries =
      indexed ? index_queries(weights.indexer, x, q_latent, weights.q_width) : IndexQueries{};

  const Value16* q = qkv;
  int64_t q_stride = qkv_width;
  if (low_rank) {
    q_stride = weights.q_b.n;
    auto* expanded = arena_.array<Value16>(num_tokens_ * q_stride);
    linear("q_b", q_latent, weights.q_width, weights.q_b, expanded, nullptr, num_tokens_);
    q = expanded;
  }
  q += weights.q_skip;

  const DeviceRows heads_out = allocate_rows(num_tokens_, heads_width, has_scales(weights.o.type),
                                             num_prefill_ > 0 || !expands_to_codes(weights.o));
  if (num_prefill_ > 0) {
    // The rows that select come first, because prefill_attention rotates queries in place and quantises all
    // outputs.
    const int64_t bits_words = step_.prefill->bits_words;
    auto* bits = bits_words > 0 ? arena_.array<uint64_t>(num_prefill_ * bits_words) : nullptr;
    if (indexed) selecting_attention(weights, pool, index_pool, queries, q, q_stride, heads_out.x, bits);
    prefill_attention(weights, pool, q, q_stride, bits, heads_out.x, heads_out.x_quantized);
  }
  if (num_decode_ > 0) {
    const Value16* decode_q = q + num_prefill_ * q_stride;
    Value16* decode_out = heads_out.x == nullptr ? nullptr : heads_out.x + num_prefill_ * heads_width;
    cuda::DeviceSelection selection;
    if (indexed && step_.may_select) {
      selection = select_keys(weights.indexer, index_pool, queries, num_prefill_, num_decode_,
                              step_.decode_seq_idx, step_.decode_kv_len, false);
    }
    decode_attention(weights, pool, decode_q, q_stride, selection, decode_out,
                     rows_from(heads_out.x_quantized, num_prefill_));
  }
  linear("o_proj", heads_out, heads_width, weights.o, out, nullptr, num_tokens_);
}

void DeviceForward::prefill_attention(const DeviceAttention& weights, std::byte* pool, const Value16* q,
                                      int64_t q_stride, const uint64_t* bits, Value16* out,
                                      const cuda::QuantizedRows& out_fp8) {
  const DeviceArena::Scope scope(arena_);
  const PrefillPlan& plan = *step_.prefill;
  const int64_t m = num_prefill_;
  const int64_t heads_width = heads_ * kVHeadDim;
  // The absorbed passes come first, because they need unrotated queries. Their inputs are not settled,
  // because a sequence may have new tokens of another sequence in this step among its keys.
  for (size_t i = 0; i < plan.absorbed_passes.size(); ++i) {
    const AbsorbedPass& pass = plan.absorbed_passes[i];
    const int64_t rows = int64_t{pass.num_groups} * plan.group_rows;
    const double share =
        static_cast<double>(pass.num_groups) / std::max<double>(1.0, plan.absorbed_kv_len.size());
    const double pairs = share * static_cast<double>(plan.absorbed_pairs);
    absorbed_attention(weights, pool,
                       {.q = q,
                        .q_stride = q_stride,
                        .m = rows,
                        .positions = step_.positions,
                        .rows = step_.absorbed_rows + int64_t{pass.first_group} * plan.group_rows,
                        .plan = &absorbed_plans_[i],
                        .seq_idx = step_.absorbed_seq_idx + pass.first_group,
                        .kv_len = step_.absorbed_kv_len + pass.first_group,
                        .pairs = pairs,
                        .keys = pairs / plan.group_rows},
                       {.kv_b = weights.kv_b,
                        .y = out,
                        .y_stride = heads_width,
                        .rows = step_.absorbed_rows + int64_t{pass.first_group} * plan.group_rows});
  }
  if (plan.passes.empty()) {
    if (out_fp8) quantize(out, m, heads_width, out_fp8);
    return;
  }
  auto* rope_part =
      const_cast<Value16*>(q) + kQkNopeHeadDim;  // in place, because the unrotated query is not read again
  op("q_rope", static_cast<double>(m * heads_ * kQkRopeHeadDim) * 4.0, 0.0, [&] {
    cuda::q_rope({.q = rope_part,
                  .q_row_stride = q_stride,
                  .q_head_stride = kQkHeadDim,
                  .y = rope_part,
                  .y_row_stride = q_stride,
                  .y_head_stride = kQkHeadDim,
                  .positions = step_.positions,
                  .cos_sin = weights_.cos_sin,
                  .m = m,
                  .num_heads = static_cast<int>(heads_),
                  .f16 = f16_},
                 launch_);
  });

  auto* lse = plan.passes.size() > 1 || exec_.measure_only ? arena_.array<float>(m * heads_) : nullptr;
  cuda::DevicePagedKv paged = paged_;
  paged.pool = pool;
  const bool fp8 = weights.kv_b.type == WeightType::kFp8Block;
  for (const PrefillPass& pass : plan.passes) {
    const DeviceArena::Scope pass_scope(arena_);
    const int64_t keys = pass.num_keys;
    DeviceRows latent;
    if (fp8) {
      latent.x_quantized = allocate_fp8(keys, kKvLoraRank);
    } else {
      latent.x = arena_.array<Value16>(keys * kKvLoraRank);
    }
    auto* rope = arena_.array<Value16>(keys * kQkRopeHeadDim);
    auto* kv = arena_.array<Value16>(keys * weights.kv_b.n);
    op("gather_keys", static_cast<double>(keys) * (cache_.layout().row_bytes() + 1152.0), 0.0, [&] {
      cuda::gather_keys({.kv = paged,
                         .runs = step_.key_runs + pass.first_key_run,
                         .num_runs = pass.num_key_runs,
                         .max_count = pass.max_count,
                         .latent = latent.x,
                         .rope = rope,
                         .latent_fp8 = latent.x_quantized},
                        launch_);
    });
    linear("kv_b", latent, kKvLoraRank, weights.kv_b, kv, nullptr, keys);
    double pairs = 0.0;
    for (int i = 0; i < pass.num_segment_runs; ++i) {
      const cuda::PrefillSegmentRun& run = plan.segment_runs[pass.first_segment_run + i];
      // Pairs above the diagonal are masked.
      const double hidden = run.k_pos + run.k_len > run.q_pos ? run.q_len / 2.0 : 0.0;
      pairs += static_cast<double>(run.q_len) * std::max(0.0, static_cast<double>(run.k_len) - hidden);
    }
    op("mla_prefill", static_cast<double>(m * heads_) * 640.0 + static_cast<double>(keys * heads_) * 512.0,
       2.0 * pairs * static_cast<double>(heads_ * (kQkHeadDim + kVHeadDim)), [&] {
         cuda::mla_prefill({.f16 = f16_,
                            .q = q,
                            .q_row_stride = q_stride,
                            .q_head_stride = kQkHeadDim,
                            .kv = kv,
                            .k_rope = rope,
                            .runs = step_.segment_runs + pass.first_segment_run,
                            .host_runs = plan.segment_runs.data() + pass.first_segment_run,
                            .num_runs = pass.num_segment_runs,
                            .num_keys = keys,
                            .m = m,
                            .num_heads = static_cast<int>(heads_),
                            .softmax_scale = static_cast<float>(config_.softmax_scale()),
                            .out = out,
                            .out_stride = heads_width,
                            .lse = lse,
                            .accumulate = pass.accumulate,
                            .bits = pass.selects ? bits + pass.first_key / 64 : nullptr,
                            .bits_stride = plan.bits_words},
                           launch_);
       });
  }
  if (out_fp8) quantize(out, m, heads_width, out_fp8);
}

void DeviceForward::decode_attention(const DeviceAttention& weights, std::byte* pool, const Value16* q,
                                     int64_t q_stride, const cuda::DeviceSelection& selection, Value16* out,
                                     const cuda::QuantizedRows& out_fp8) {
  // Outputs go straight to FP8 rows if o_proj reads them and fusion is on.
  const bool straight = out_fp8 && expands_to_codes(weights.o);
  const auto keys = static_cast<double>(step_.decode_keys);
  absorbed_attention(weights, pool,
                     {.q = q,
                      .q_stride = q_stride,
                      .m = num_decode_,
                      .positions = step_.positions + num_prefill_,
                      .fused_rope = exec_.fusion,
                      .plan = &plan_,
                      .seq_idx = step_.decode_seq_idx,
                      .kv_len = step_.decode_kv_len,
                      .newest_seen = step_.decode_newest_seen,
                      .settled = settled_ && step_.decode_settled,
                      .selection = selection,
                      .pairs = keys,
                      .keys = keys},
                     {.kv_b = weights.kv_b,
                      .y = straight ? nullptr : out,
                      .y_stride = heads_ * kVHeadDim,
                      .y_quantized = straight ? out_fp8 : cuda::QuantizedRows{}});
  if (out_fp8 && !straight) quantize(out, num_decode_, heads_ * kVHeadDim, out_fp8);
}

void DeviceForward::absorbed_attention(const DeviceAttention& weights, std::byte* pool,
                                       const AbsorbedRows& in, cuda::ExpandValueParams out) {
  const DeviceArena::Scope scope(arena_);
  const int heads = static_cast<int>(heads_);
  const double head_rows = static_cast<double>(in.m * heads_);
  auto* absorbed = arena_.array<Value16>(in.m * heads_ * kKvRowDim);
  auto* o_latent = arena_.array<Value16>(in.m * heads_ * kKvLatentDim);
  std::byte* scratch = arena_.allocate(in.plan->scratch_bytes);
  const double weight_element = weights.w_uk.type == WeightType::kFp8Block ? 1.0 : 2.0;
  const double half_weights = static_cast<double>(heads_) * kKvLoraRank * kQkNopeHeadDim * weight_element;
  const double half_flops = 2.0 * head_rows * kKvLoraRank * kQkNopeHeadDim;
  const double rope_bytes = head_rows * kQkRopeHeadDim * 4.0;

  if (!in.fused_rope) {
    op("q_rope", rope_bytes, 0.0, [&] {
      cuda::q_rope({.q = in.q + kQkNopeHeadDim,
                    .q_row_stride = in.q_stride,
                    .q_head_stride = kQkHeadDim,
                    .y = absorbed + kKvLatentDim,
                    .y_row_stride = heads_ * kKvRowDim,
                    .y_head_stride = kKvRowDim,
                    .positions = in.positions,
                    .cos_sin = weights_.cos_sin,
                    .m = in.m,
                    .num_heads = heads,
                    .f16 = f16_},
                   launch_);
    });
  }
  op("absorb_query", half_weights + head_rows * 1280.0 + (in.fused_rope ? rope_bytes : 0.0), half_flops, [&] {
    cuda::absorb_query({.q = in.q,
                        .q_row_stride = in.q_stride,
                        .q_head_stride = kQkHeadDim,
                        .w_uk = weights.w_uk,
                        .y = absorbed,
                        .m = in.m,
                        .num_heads = heads,
                        .positions = in.fused_rope ? in.positions : nullptr,
                        .cos_sin = weights_.cos_sin,
                        .rows = in.rows,
                        .settled = settled_},
                       launch_);
  });
  cuda::DevicePagedKv paged = paged_;
  paged.pool = pool;
  op("mla_decode", in.keys * cache_.layout().row_bytes() + head_rows * 2176.0,
     2.0 * in.pairs * static_cast<double>(heads_) * (kKvRowDim + kKvLatentDim), [&] {
       cuda::mla_decode({.shape = in.plan->shape,
                         .q = absorbed,
                         .out = o_latent,
                         .kv = paged,
                         .seq_idx = in.seq_idx,
                         .kv_len = in.kv_len,
                         .softmax_scale = static_cast<float>(config_.softmax_scale()),
                         .newest_seen = in.newest_seen,
                         .settled = in.settled,
                         .plan = in.plan->plan,
                         .scratch = scratch,
                         .selection = in.selection},
                        in.plan->geometry, launch_);
     });
  out.o = o_latent;
  out.m = in.m;
  out.num_heads = heads;
  op("expand_value", half_weights + head_rows * 1280.0, half_flops,
     [&] { cuda::expand_value(out, launch_); });
}

}  // namespace hadal
