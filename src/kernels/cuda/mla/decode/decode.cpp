#include "kernels/cuda/mla/decode/decode.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/mla/decode/sparse/sparse.h"

namespace hadal::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

using Kernel = void (*)(const DecodeArgs&, const DecodeGeometry&, const Launch&);

bool is_16_bit(KvFormat format) {
  return format == KvFormat::kBF16 || format == KvFormat::kF16;
}

template <KvFormat kFormat, bool kMasks>
Kernel kernel_of(DecodeKernel kernel) {
  if (kernel == DecodeKernel::kSwapped) return mla_decode_swapped<kFormat, kMasks>;
  if (kernel == DecodeKernel::kTiles) return mla_decode_tiles<kFormat, kMasks>;
  if constexpr (kFormat == KvFormat::kFp8E4M3 || kFormat == KvFormat::kFp8E5M2)
    return mla_decode_fp8_products<kFormat, kMasks>;
  return nullptr;
}

template <KvFormat kFormat>
Kernel kernel_of(DecodeKernel kernel, bool has_masks) {
  return has_masks ? kernel_of<kFormat, true>(kernel) : kernel_of<kFormat, false>(kernel);
}

Kernel kernel_of(DecodeKernel kernel, KvFormat format, bool has_masks) {
  switch (format) {
    case KvFormat::kBF16:
      return kernel_of<KvFormat::kBF16>(kernel, has_masks);
    case KvFormat::kF16:
      return kernel_of<KvFormat::kF16>(kernel, has_masks);
    case KvFormat::kFp8E4M3:
      return kernel_of<KvFormat::kFp8E4M3>(kernel, has_masks);
    case KvFormat::kFp8E5M2:
      return kernel_of<KvFormat::kFp8E5M2>(kernel, has_masks);
    default:
      HADAL_CHECK(false, "KV format is {}; the device supports bf16, f16, fp8_e4m3 and fp8_e5m2",
                  static_cast<int>(format));
  }
}

// Computes the rows that attend to a selection.
void decode_selections(const DeviceDecodeParams& p, const Launch& launch) {
  const SparseGeometry geometry = sparse_geometry(p.shape);
  auto* scratch = static_cast<float*>(p.scratch);
  const SparseArgs args{
      .q = static_cast<const bf16*>(p.q),
      .out = static_cast<bf16*>(p.out),
      .lse = p.lse,
      .pool = p.kv.pool,
      .num_slots = p.selection.num_slots,
      .kv_len = p.kv_len,
      .slots = p.selection.slots,
      .counts = p.selection.counts,
      .partial_out = scratch,
      .partial_lse = scratch + geometry.partial_rows * kKvLatentDim,
      .num_rows = static_cast<int>(p.shape.num_seqs),
      .num_heads = p.shape.num_heads,
      .scale_log2 = p.softmax_scale * kLog2E,
      .geometry = geometry,
  };
  if (p.kv.layout.format == KvFormat::kBF16) {
    mla_decode_sparse<KvFormat::kBF16>(args, launch);
  } else {
    mla_decode_sparse<KvFormat::kFp8E4M3>(args, launch);
  }
  if (!geometry.fixed_splits) mla_merge_sparse(args, launch);
}

// Returns the scratch of a call, whose kernels over pages and over selections run one after the other and use
// the same memory.
size_t joint_scratch_bytes(size_t of_pages, const MlaPlanShape& shape) {
  if (shape.index_topk == 0) return of_pages;
  return std::max(of_pages, sparse_scratch_bytes(sparse_geometry(shape)));
}

}  // namespace

ClusterCapacity device_capacity(int num_sms) {
  ClusterCapacity capacity;
  for (int i = 0; i < kDecodeClusterSizes; ++i)
    capacity.clusters[i] = std::min(mla_swapped_capacity(1 << i), num_sms >> i);
  return capacity;
}

DecodeGeometry decode_geometry(const MlaPlanShape& shape) {
  const ClusterCapacity capacity = device_capacity(shape.num_sms);
  return decode_geometry(shape, decode_schedule(shape, capacity), capacity);
}

size_t mla_plan_bytes(const MlaPlanShape& shape) {
  return decode_plan_bytes(decode_geometry(shape));
}
size_t mla_decode_scratch_bytes(const MlaPlanShape& shape) {
  return joint_scratch_bytes(decode_scratch_bytes(decode_geometry(shape)), shape);
}
MlaDecodeBytes mla_decode_most_bytes(const MlaPlanShape& shape) {
  MlaDecodeBytes bytes = decode_most_bytes(shape, device_capacity(shape.num_sms));
  bytes.scratch = joint_scratch_bytes(bytes.scratch, shape);
  return bytes;
}
void mla_decode_plan(const MlaPlanShape& shape, const int32_t* kv_len, void* plan, const Launch& launch) {
  mla_decode_plan(decode_geometry(shape), kv_len, plan, launch);
}
void mla_decode(const DeviceDecodeParams& params, const Launch& launch) {
  mla_decode(params, decode_geometry(params.shape), launch);
}

void mla_decode(const DeviceDecodeParams& p, const DecodeGeometry& geometry, const Launch& launch) {
  HADAL_CHECK(p.softmax_scale > 0.0F, "softmax_scale is {}; must be above 0", p.softmax_scale);
  HADAL_CHECK_EQ(reinterpret_cast<uintptr_t>(p.kv.pool) % 16, 0U);
  HADAL_CHECK(p.kv.record_stride % 16 == 0 && p.kv.page_stride % 16 == 0,
              "strides are {} and {} bytes; must be multiples of 16", p.kv.record_stride, p.kv.page_stride);
  HADAL_CHECK(is_16_bit(p.kv.layout.format) || (p.kv.record_stride == 0 && p.kv.page_stride == 0),
              "FP8 caches are dense: record_stride {} and page_stride {} must be 0", p.kv.record_stride,
              p.kv.page_stride);
  if (p.shape.num_seqs == 0) return;
  HADAL_CHECK(p.shape.layout.format == p.kv.layout.format, "the plan is for KV format {}, the cache has {}",
              static_cast<int>(p.shape.layout.format), static_cast<int>(p.kv.layout.format));
  HADAL_CHECK(p.kv.layout.format != KvFormat::kFp8E4M3 || p.shape.layout.scales == p.kv.layout.scales,
              "the plan is for scales {} of a KV record, the cache has {}",
              static_cast<int>(p.shape.layout.scales), static_cast<int>(p.kv.layout.scales));
  const bool selects = p.shape.index_topk > 0;
  HADAL_CHECK(p.newest_seen == nullptr || (p.causal && !p.settled && !selects),
              "masks of the newest records need causal attention, inputs that are not settled and no "
              "selection: causal {}, settled {}, index_topk {}",
              p.causal, p.settled, p.shape.index_topk);
  if (selects) {
    HADAL_CHECK(p.selection.slots != nullptr && p.selection.counts != nullptr,
                "index_topk is {}; the selection's slots and counts must be set", p.shape.index_topk);
    HADAL_CHECK(p.kv.record_stride == 0 && p.kv.page_stride == 0,
                "a selection needs a dense cache: record_stride {} and page_stride {} must be 0",
                p.kv.record_stride, p.kv.page_stride);
    HADAL_CHECK(geometry.index_topk == p.shape.index_topk, "the plan is for index_topk {}, the call has {}",
                geometry.index_topk, p.shape.index_topk);
  }
  if (launch.reference) return reference::mla_decode(p, launch);
  HADAL_CHECK(p.scratch != nullptr, "decode needs its scratch");
  if (selects && p.selection.all_rows) return decode_selections(p, launch);
  HADAL_CHECK(p.plan != nullptr, "decode needs its plan");

  const int64_t record_stride = p.kv.record_stride > 0 ? p.kv.record_stride : p.kv.layout.row_bytes();
  auto* scratch = static_cast<float*>(p.scratch);
  const DecodeArgs args{
      .q = p.q,
      .out = p.out,
      .lse = p.lse,
      .pool = p.kv.pool,
      .record_stride = record_stride,
      .page_stride = p.kv.page_stride > 0 ? p.kv.page_stride : kPageSize * record_stride,
      .page_table = p.kv.page_table,
      .page_table_stride = p.kv.page_table_stride,
      .seq_idx = p.seq_idx,
      .kv_len = p.kv_len,
      .plan = decode_plan_view(geometry, p.plan),
      .partial_out = scratch,
      .partial_lse = scratch + geometry.max_slots * decode_slot_rows(geometry) * kKvLatentDim,
      .num_seqs = static_cast<int>(p.shape.num_seqs),
      .num_heads = p.shape.num_heads,
      .q_len = p.shape.q_len,
      .rows = geometry.rows,
      .num_tiles = geometry.num_tiles,
      .scale_log2 = p.softmax_scale * kLog2E,
      .causal = p.causal,
      .settled = p.settled,
      .merge_inside = geometry.merge_inside,
      .out_f16 = p.kv.layout.format == KvFormat::kF16,
      .newest_seen = p.newest_seen,
      .index_topk = p.shape.index_topk,
  };
  const Kernel kernel = kernel_of(geometry.kernel, p.kv.layout.format, p.newest_seen != nullptr);
  HADAL_CHECK(kernel != nullptr, "no kernel {} for KV format {}", static_cast<int>(geometry.kernel),
              static_cast<int>(p.kv.layout.format));
  kernel(args, geometry, launch);
  if (!geometry.merge_inside) mla_merge(args, geometry, launch);
  // This comes last, because the kernels above store zeros for the rows that have a selection.
  if (selects) decode_selections(p, launch);
}

}  // namespace hadal::cuda
