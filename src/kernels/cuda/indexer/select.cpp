#include "kernels/cuda/indexer/select.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/indexer/reference.h"

namespace hadal::cuda {

void index_select(const DeviceIndexSelectParams& p, const Launch& launch) {
  const IndexSelectPlan plan = index_select_plan(p.shape, launch.num_sms);
  HADAL_CHECK((p.slots != nullptr) != (p.bits != nullptr), "exactly one of slots and bits must be set");
  HADAL_CHECK(p.slots == nullptr || p.counts != nullptr, "slots need counts");
  HADAL_CHECK(p.bits == nullptr || p.bits_stride * kPageSize >= p.shape.most_keys,
              "bits_stride is {}; must be at least {}", p.bits_stride,
              (p.shape.most_keys + kPageSize - 1) / kPageSize);
  HADAL_CHECK(on_16_bytes(p.pool) && on_16_bytes(p.q) && on_16_bytes(p.workspace),
              "pool, q and workspace must be 16-byte aligned");
  if (plan.rows_at_once == 0) return;
  HADAL_CHECK(p.workspace != nullptr, "index_select needs its workspace");
  if (launch.reference) return reference::index_select(p, plan, launch);
  auto* scores = static_cast<float*>(p.workspace);
  for (int64_t begin = 0; begin < p.shape.num_rows; begin += plan.rows_at_once) {
    const auto rows = static_cast<int>(std::min(plan.rows_at_once, p.shape.num_rows - begin));
    index_score({.q = p.q + begin * p.shape.num_heads * kIndexHeadDim,
                 .w = p.w + begin * p.shape.num_heads,
                 .pool = p.pool,
                 .page_table = p.page_table,
                 .page_table_stride = p.page_table_stride,
                 .seq_idx = p.seq_idx + begin,
                 .kv_len = p.kv_len + begin,
                 .scores = scores,
                 .score_stride = plan.score_stride,
                 .num_rows = rows,
                 .num_heads = p.shape.num_heads,
                 .topk = p.shape.topk},
                plan.group_rows, launch);
    index_choose({.scores = scores,
                  .score_stride = plan.score_stride,
                  .page_table = p.page_table,
                  .page_table_stride = p.page_table_stride,
                  .seq_idx = p.seq_idx + begin,
                  .kv_len = p.kv_len + begin,
                  .slots = p.slots == nullptr ? nullptr : p.slots + begin * p.shape.topk,
                  .counts = p.counts == nullptr ? nullptr : p.counts + begin,
                  .bits = p.bits == nullptr ? nullptr : p.bits + begin * p.bits_stride,
                  .bits_stride = p.bits_stride,
                  .num_rows = rows,
                  .topk = p.shape.topk},
                 plan.select_cluster, launch);
  }
}

}  // namespace hadal::cuda
