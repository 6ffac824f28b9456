#include "kernels/cuda/mla/decode.h"

#include "base/check.h"

namespace hadal::cuda {

void mla_decode(const MlaDecodeParams& p, const Launch& launch) {
  const DecodeGeometry geometry = decode_geometry(p.shape);
  HADAL_CHECK(p.softmax_scale > 0.0F, "softmax_scale {}: above 0", p.softmax_scale);
  HADAL_CHECK_EQ(reinterpret_cast<uintptr_t>(p.kv.pool) % 16, 0U);
  if (p.shape.num_seqs == 0) return;
  if (launch.reference) return reference::mla_decode(p, launch);
  HADAL_CHECK(p.plan != nullptr && p.scratch != nullptr, "decode needs its plan and its scratch");

  const bool many_rows = geometry.tile_rows == 64;
  // With less than two parts a sequence there are few splits or none, and waiting for them costs less than a
  // launch. Fixed splits are merged in one order whatever the batch.
  const bool merge_inside = !many_rows && !geometry.fixed_splits && geometry.num_parts < 2 * p.shape.num_seqs;
  auto* scratch = static_cast<float*>(p.scratch);
  const DecodeArgs args{
      .q = p.q,
      .out = p.out,
      .lse = p.lse,
      .pool = p.kv.pool,
      .page_bytes = p.kv.layout.page_bytes(),
      .page_table = p.kv.page_table,
      .page_table_stride = p.kv.page_table_stride,
      .seq_idx = p.seq_idx,
      .kv_len = p.kv_len,
      .plan = decode_plan_view(p.shape, p.plan),
      .partial_out = scratch,
      .partial_lse = scratch + geometry.max_slots * geometry.rows * kKvLatentDim,
      .num_seqs = static_cast<int>(p.shape.num_seqs),
      .num_heads = p.shape.num_heads,
      .q_len = p.shape.q_len,
      .rows = geometry.rows,
      .num_tiles = geometry.num_tiles,
      .scale_log2 = p.softmax_scale * 1.4426950408889634F,
      .merge_inside = merge_inside,
  };
  switch (p.kv.layout.format) {
    case KvFormat::kBF16:
      (many_rows ? mla_decode_wgmma_bf16 : mla_decode_stream_bf16)(args, geometry, launch);
      break;
    case KvFormat::kFp8E4M3:
      (many_rows ? mla_decode_wgmma_e4m3 : mla_decode_stream_e4m3)(args, geometry, launch);
      break;
    case KvFormat::kFp8E5M2:
      (many_rows ? mla_decode_wgmma_e5m2 : mla_decode_stream_e5m2)(args, geometry, launch);
      break;
    default:
      HADAL_CHECK(false, "KV format {}: the device has bf16, fp8_e4m3 and fp8_e5m2",
                  static_cast<int>(p.kv.layout.format));
  }
  if (!merge_inside) mla_merge(args, geometry, launch);
}

}  // namespace hadal::cuda
