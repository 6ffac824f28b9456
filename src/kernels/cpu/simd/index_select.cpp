// Chooses for each token the keys of highest score. Tokens are processed in waves of kWaveRows rows, or as
// many as there are threads, so scratch is a few rows of scores whatever the number of tokens. A wave is
// scored in items of kItemKeys keys × up to kGroupRows tokens of one sequence, which share the widened keys.
// Then the keys of each of its rows are chosen.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/index_select.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/index_choose-inl.h"
#include "kernels/cpu/simd/index_score-inl.h"

#ifndef HADAL_KERNELS_CPU_SIMD_INDEX_SELECT_TYPES_
#define HADAL_KERNELS_CPU_SIMD_INDEX_SELECT_TYPES_
namespace hadal::cpu::simd {
namespace {

constexpr int64_t kWaveRows = 4;
constexpr int64_t kGroupRows = 4;
constexpr int64_t kItemKeys = 256;                    // 50 µs for one token of 64 heads
constexpr int64_t kPanelFloats = kIndexHeadDim * 32;  // of the widest vectors

// RowGroup holds consecutive rows of a wave whose tokens belong to one sequence.
struct RowGroup {
  int32_t begin = 0;
  int32_t count = 0;
  int64_t items_before = 0;  // of the wave's earlier groups
};

// Wave holds the rows that are scored together. tokens and groups are [wave rows].
struct Wave {
  int32_t* tokens = nullptr;
  int64_t num_rows = 0;
  RowGroup* groups = nullptr;
  int64_t num_groups = 0;
  int32_t* scores = nullptr;  // [wave rows, stride]: in the order of the scores
  int64_t stride = 0;         // a multiple of 64
};

}  // namespace
}  // namespace hadal::cpu::simd
#endif  // HADAL_KERNELS_CPU_SIMD_INDEX_SELECT_TYPES_

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_NATIVE_FMA

// Scores keys [key_begin, key_begin + kItemKeys) for a group's rows. `panel` is kPanelFloats floats.
void score_item(const IndexSelectParams& p, const Wave& wave, const RowGroup& group, int64_t key_begin,
                float* panel) {
  const int32_t* tokens = wave.tokens + group.begin;
  const KvLayout layout{.index = p.keys.layout};
  const int32_t* page_ids = p.keys.page_table + p.seq_idx[tokens[0]] * p.keys.page_table_stride;
  for (int64_t key = key_begin; key < key_begin + kItemKeys; key += kPanelRows) {
    bool widened = false;
    for (int64_t i = 0; i < group.count; ++i) {
      if (p.kv_len[tokens[i]] <= key) continue;
      const std::byte* page = p.keys.pool + page_ids[key / kPageSize] * layout.index_page_bytes();
      if (!widened) widen_index_keys(page, p.keys.layout, key % kPageSize, panel);
      widened = true;
      const auto* scales =
          p.keys.layout == KvIndex::kF32
              ? nullptr
              : reinterpret_cast<const float*>(page + kKvIndexScalesOffset) + key % kPageSize;
      const int64_t row = tokens[i] * int64_t{p.num_heads};
      score_panel(p.q + row * kIndexHeadDim, p.w + row, p.num_heads, panel, scales,
                  wave.scores + (group.begin + i) * wave.stride + key);
    }
  }
}

bool is_native() {
  return true;
}

#else  // the chains need a fused multiply-add, which the reference emulates

void score_item(const IndexSelectParams& /*p*/, const Wave& /*wave*/, const RowGroup& /*group*/,
                int64_t /*key_begin*/, float* /*panel*/) {}

bool is_native() {
  return false;
}

#endif  // HWY_NATIVE_FMA

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(choose_all);
HWY_EXPORT(choose_best);
HWY_EXPORT(score_item);
HWY_EXPORT(is_native);

namespace {

// Cuts the wave's rows into groups and returns the number of items.
int64_t make_groups(const IndexSelectParams& p, Wave& wave) {
  int64_t num_items = 0;
  wave.num_groups = 0;
  for (int64_t begin = 0; begin < wave.num_rows;) {
    const int32_t seq_idx = p.seq_idx[wave.tokens[begin]];
    int64_t most_keys = 0;
    int64_t end = begin;
    for (; end < wave.num_rows && end - begin < kGroupRows && p.seq_idx[wave.tokens[end]] == seq_idx; ++end) {
      most_keys = std::max<int64_t>(most_keys, p.kv_len[wave.tokens[end]]);
    }
    wave.groups[wave.num_groups++] = {static_cast<int32_t>(begin), static_cast<int32_t>(end - begin),
                                      num_items};
    num_items += (most_keys + kItemKeys - 1) / kItemKeys;
    begin = end;
  }
  return num_items;
}

void select_wave(const IndexSelectParams& p, Wave& wave, float* panels, Context& ctx) {
  const int64_t num_items = make_groups(p, wave);
  ctx.pool.parallel_for(num_items, 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t item = begin; item < end; ++item) {
      const RowGroup* group =
          std::upper_bound(wave.groups, wave.groups + wave.num_groups, item,
                           [](int64_t i, const RowGroup& g) { return i < g.items_before; }) -
          1;
      HWY_DYNAMIC_DISPATCH(score_item)
      (p, wave, *group, (item - group->items_before) * kItemKeys, panels + thread_idx * kPanelFloats);
    }
  });
  ctx.pool.parallel_for(wave.num_rows, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(choose_best)(p, wave.tokens[row], wave.scores + row * wave.stride);
    }
  });
}

}  // namespace

void index_select(const IndexSelectParams& p, Context& ctx) {
  if (p.num_tokens == 0) return;
  HADAL_CHECK(p.num_heads >= 1 && p.num_heads <= kMaxIndexHeads, "{} heads", p.num_heads);
  if (!HWY_DYNAMIC_DISPATCH(is_native)()) return reference::index_select(p, ctx);

  // A token that sees at most topk keys attends to all of them, so they need no scores.
  constexpr int64_t kGrain = 16;
  ctx.pool.parallel_for(p.num_tokens, kGrain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t token = begin; token < end; ++token) {
      if (p.kv_len[token] <= p.topk) HWY_DYNAMIC_DISPATCH(choose_all)(p, token);
    }
  });
  const int64_t most_keys = *std::max_element(p.kv_len, p.kv_len + p.num_tokens);
  if (most_keys <= p.topk) return;

  const auto allocate = [&]<typename T>(T*& array, int64_t count) {
    array = static_cast<T*>(ctx.scratch.allocate(count * sizeof(T)));
  };
  const int64_t max_rows =
      std::min<int64_t>(p.num_tokens, std::max<int64_t>(kWaveRows, ctx.pool.num_threads()));
  Wave wave;
  wave.stride = (most_keys + 63) / 64 * 64;
  float* panels = nullptr;
  allocate(wave.tokens, max_rows);
  allocate(wave.groups, max_rows);
  allocate(wave.scores, max_rows * wave.stride);
  allocate(panels, ctx.pool.num_threads() * kPanelFloats);
  for (int64_t token = 0; token < p.num_tokens;) {
    wave.num_rows = 0;
    for (; token < p.num_tokens && wave.num_rows < max_rows; ++token) {
      if (p.kv_len[token] > p.topk) wave.tokens[wave.num_rows++] = static_cast<int32_t>(token);
    }
    select_wave(p, wave, panels, ctx);
  }
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
