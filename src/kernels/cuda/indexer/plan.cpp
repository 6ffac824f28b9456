#include "kernels/cuda/indexer/plan.h"

#include <algorithm>

#include "base/check.h"

namespace hadal::cuda {
namespace {

// A multiprocessor holds 2,048 threads, and so this many blocks of the select kernel.
constexpr int64_t kSelectBlocksPerSm = 2048 / kIndexSelectThreads;

}  // namespace

IndexSelectPlan index_select_plan(const IndexSelectShape& shape, int num_sms) {
  HADAL_CHECK_GE(shape.num_rows, 0);
  HADAL_CHECK(shape.num_heads >= 1 && shape.num_heads <= kMaxIndexHeads, "num_heads is {}; must be 1 to {}",
              shape.num_heads, kMaxIndexHeads);
  HADAL_CHECK(shape.topk >= 1 && shape.topk <= kMaxIndexTopk, "topk is {}; must be 1 to {}", shape.topk,
              kMaxIndexTopk);
  constexpr int64_t kMostKeys = kMaxIndexScoreBytes / 4;
  HADAL_CHECK(shape.most_keys >= 0 && shape.most_keys <= kMostKeys, "most_keys is {}; must be 0 to {}",
              shape.most_keys, kMostKeys);
  IndexSelectPlan plan;
  plan.group_rows = shape.rows_share_keys ? kIndexScoreWarps : 1;
  if (shape.num_rows == 0 || shape.most_keys <= shape.topk) return plan;
  plan.score_stride = (shape.most_keys + kPageSize - 1) / kPageSize * kPageSize;
  const int64_t held = kMaxIndexScoreBytes / (plan.score_stride * int64_t{sizeof(float)});
  plan.rows_at_once =
      std::min({shape.num_rows, std::max<int64_t>(held, 1), int64_t{kMaxIndexGroups} * plan.group_rows});
  const int64_t resident_blocks = kSelectBlocksPerSm * num_sms;
  while (plan.select_cluster < 8 && plan.rows_at_once * plan.select_cluster * 2 <= resident_blocks)
    plan.select_cluster *= 2;
  plan.workspace_bytes =
      static_cast<size_t>(plan.rows_at_once) * static_cast<size_t>(plan.score_stride) * sizeof(float);
  return plan;
}

int index_kept_scores(int64_t score_stride, int num_rows, int cluster, int num_sms) {
  const int blocks = (num_rows * cluster + num_sms - 1) / num_sms;  // of a multiprocessor
  const int held = (kIndexSharedBytes - kIndexScoreBytes) / std::max(blocks, 1) - kIndexChooseBytes - 1024;
  const int64_t slice = slice_begin(score_stride, 1, cluster);
  const int64_t tiles = std::min<int64_t>((slice + kIndexKeptTile - 1) / kIndexKeptTile,
                                          std::max(held, 0) / (kIndexKeptTile * int64_t{sizeof(float)}));
  return static_cast<int>(tiles) * kIndexKeptTile;
}

size_t index_select_workspace_bytes(const IndexSelectShape& shape) {
  return index_select_plan(shape, 1).workspace_bytes;
}

}  // namespace hadal::cuda
