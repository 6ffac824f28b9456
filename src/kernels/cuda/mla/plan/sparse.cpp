#include "kernels/cuda/mla/plan/sparse.h"

#include "base/check.h"

namespace hadal::cuda {

SparseGeometry sparse_geometry(const MlaPlanShape& shape) {
  HADAL_CHECK(shape.index_topk >= 1 && shape.index_topk <= kMaxIndexTopk, "index_topk is {}; must be 1 to {}",
              shape.index_topk, kMaxIndexTopk);
  HADAL_CHECK(shape.q_len == 1, "q_len is {}; must be 1 with a selection, whose rows are tokens",
              shape.q_len);
  HADAL_CHECK(shape.num_heads >= 1 && shape.num_heads <= 128, "num_heads is {}; must be 1 to 128",
              shape.num_heads);
  HADAL_CHECK(shape.num_sms >= 1, "num_sms is {}; must be at least 1", shape.num_sms);
  HADAL_CHECK(shape.layout.format == KvFormat::kBF16 || shape.layout.format == KvFormat::kFp8E4M3,
              "KV format is {}; a selection needs bf16 or fp8_e4m3", static_cast<int>(shape.layout.format));
  SparseGeometry g;
  g.tile_heads = shape.num_heads <= 16 ? 16 : shape.num_heads <= 32 ? 32 : 64;
  g.num_tiles = (shape.num_heads + g.tile_heads - 1) / g.tile_heads;
  g.num_blocks = shape.num_sms;
  g.topk = shape.index_topk;
  g.fixed_splits = shape.split_pages > 0;
  // Rows are split only if the items of all splits fit on the device at once, which bounds the scratch.
  if (!g.fixed_splits) g.partial_rows = int64_t{g.num_blocks / g.num_tiles} * shape.num_heads;
  return g;
}

size_t sparse_scratch_bytes(const SparseGeometry& g) {
  return static_cast<size_t>(g.partial_rows) * (kKvLatentDim + 1) * sizeof(float);
}

}  // namespace hadal::cuda
