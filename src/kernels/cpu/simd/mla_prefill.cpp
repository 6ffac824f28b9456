// Computes un-absorbed attention for prompts. attention_prefill.h describes the phases, and
// docs/kernels/cpu-attention.md gives the reasons.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/attention_prefill.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/mla_prefill.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/attention_prefill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_NATIVE_FMA

constexpr float kLog2E = 1.44269504088896341F;

// Returns the kv_b scale row of one half (0: keys, 1: values) of a head; null for unscaled weights.
HWY_INLINE const float* half_scales(const MatrixWeight& w, int64_t head, int64_t half) {
  return is_block_scaled(w.type) ? w.scales + (2 * head + half) * w.scale_stride : nullptr;
}

// Processes the window's pages [run.begin, +count) of one segment for query tile `tile` of one head. keys and
// values point to the head's first page of the window.
HWY_INLINE void attend_tile(const MlaPrefillParams& p, const PrefillBuffers& buffers,
                            const PrefillPage* pages, const PrefillRun& run, int64_t head, int64_t tile,
                            const float* keys, const float* values, const PrefillWorkspace& ws) {
  const PrefillSegment& segment = p.segments[pages[run.begin].segment];
  const int64_t row_begin = tile * kQueryTile;
  const int64_t num_rows = std::min(kQueryTile, segment.q_len - row_begin);
  const int64_t position = segment.kv_len - segment.q_len + row_begin;  // position of the tile's first row
  const int64_t last_page = (position + num_rows - 1) / kPageSize;
  if (last_page < pages[run.begin].page) return;  // finished in an earlier window
  const bool starts = pages[run.begin].page == 0;
  const bool ends = last_page <= pages[run.begin + run.count - 1].page;

  const DF d;
  const VF factor = hn::Set(d, p.softmax_scale * kLog2E);
  const int64_t first = (segment.q_begin + row_begin) * p.num_heads + head;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t state = first + row * p.num_heads;
    const float* q = p.q + state * kQkDim;
    for (int i = 0; i < kQkDim; i += kLanes) {
      hn::Store(hn::Mul(hn::LoadU(d, q + i), factor), d, ws.q + row * kQkDim + i);
    }
    if (starts) {
      ws.maxima[row] = -std::numeric_limits<float>::infinity();
      ws.sums[row] = 0.0F;
      std::memset(ws.out + row * kValueDim, 0, kValueDim * sizeof(float));
    } else {
      ws.maxima[row] = buffers.maxima[state];
      ws.sums[row] = buffers.sums[state];
      std::memcpy(ws.out + row * kValueDim, p.out + state * kValueDim, kValueDim * sizeof(float));
    }
  }
  for (int64_t i = run.begin; i < run.begin + run.count && pages[i].page <= last_page; ++i) {
    const int64_t relative = position - pages[i].page * int64_t{kPageSize};
    const RowMasks masks = {
        p.selected == nullptr
            ? nullptr
            : p.selected + (segment.q_begin + row_begin) * p.selected_stride + pages[i].page,
        p.selected_stride};
    attend_page(ws, std::max<int64_t>(0, -relative), num_rows, relative, pages[i].num_keys, masks,
                keys + i * kKeyFloats, values + i * kValueFloats);
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t state = first + row * p.num_heads;
    buffers.maxima[state] = ws.maxima[row];
    buffers.sums[state] = ws.sums[row];
    const float inverse = ws.sums[row] == 0.0F ? 0.0F : 1.0F / ws.sums[row];  // 0: the row selects nothing
    const VF scale = hn::Set(d, ends ? inverse : 1.0F);
    for (int i = 0; i < kValueDim; i += kLanes) {
      hn::StoreU(hn::Mul(hn::Load(d, ws.out + row * kValueDim + i), scale), d, p.out + state * kValueDim + i);
    }
  }
}

// Processes one window: pages [num_pages] for heads [head_begin, +group_heads), whose weights are ready.
void attend_window(const MlaPrefillParams& p, Context& ctx, const PrefillBuffers& buffers,
                   const PrefillPage* pages, int64_t num_pages, int64_t head_begin, int64_t group_heads) {
  ctx.pool.parallel_for(num_pages, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      widen_page(p.kv, p.segments[pages[i].segment].seq_idx, pages[i],
                 buffers.latent_rows + i * kLatentFloats, buffers.latent_panels + i * kLatentFloats);
    }
  });
  ctx.pool.parallel_for(
      group_heads * num_pages, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) HWY_ATTR {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t head = task / num_pages;
          const int64_t i = task % num_pages;
          expand_page(buffers.w_uk + head * kUkFloats, buffers.w_uv + head * kUvFloats,
                      buffers.latent_rows + i * kLatentFloats, buffers.latent_panels + i * kLatentFloats,
                      pages[i].num_keys, half_scales(p.kv_b, head_begin + head, 0),
                      half_scales(p.kv_b, head_begin + head, 1),
                      buffers.keys + (head * kWindowPages + i) * kKeyFloats,
                      buffers.values + (head * kWindowPages + i) * kValueFloats);
        }
      });
  PrefillRun runs[kWindowPages];
  int64_t tiles_before[kWindowPages + 1] = {0};  // tiles of all runs before this one, for one head
  int64_t num_runs = 0;
  for (int64_t i = 0; i < num_pages; ++i) {
    if (i == 0 || pages[i].segment != pages[i - 1].segment) {
      runs[num_runs] = {i, 0};
      const int64_t tiles = (p.segments[pages[i].segment].q_len + kQueryTile - 1) / kQueryTile;
      tiles_before[num_runs + 1] = tiles_before[num_runs] + tiles;
      ++num_runs;
    }
    ++runs[num_runs - 1].count;
  }
  const int64_t tiles = tiles_before[num_runs];
  ctx.pool.parallel_for(group_heads * tiles, 1, [&](int64_t begin, int64_t end, int thread_idx) HWY_ATTR {
    const PrefillWorkspace ws(buffers.workspaces + thread_idx * PrefillWorkspace::kFloats);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / tiles;
      // The last tiles of a prompt attend to the most keys, so they are processed first.
      const int64_t tile = tiles - 1 - task % tiles;
      const int64_t run =
          std::upper_bound(tiles_before, tiles_before + num_runs + 1, tile) - tiles_before - 1;
      attend_tile(p, buffers, pages, runs[run], head_begin + head, tile - tiles_before[run],
                  buffers.keys + head * kWindowPages * kKeyFloats,
                  buffers.values + head * kWindowPages * kValueFloats, ws);
    }
  });
}

void attend_prompts(const MlaPrefillParams& p, Context& ctx) {
  int64_t num_tokens = 0;
  int64_t total_pages = 0;
  for (int i = 0; i < p.num_segments; ++i) {
    const PrefillSegment& segment = p.segments[i];
    HADAL_CHECK(segment.q_len >= 0 && segment.q_len <= segment.kv_len, "q_len {} of kv_len {}", segment.q_len,
                segment.kv_len);
    num_tokens = std::max<int64_t>(num_tokens, int64_t{segment.q_begin} + segment.q_len);
    total_pages += (segment.kv_len + kPageSize - 1) / kPageSize;
  }
  if (num_tokens == 0 || p.num_heads == 0) return;
  HADAL_CHECK_EQ(p.kv_b.n, p.num_heads * int64_t{kNopeDim + kValueDim});
  HADAL_CHECK_EQ(p.kv_b.k, kKvLatentDim);
  HADAL_CHECK(!is_channel_scaled(p.kv_b.type), "prefill does not support channel-scaled kv_b weights");
  HADAL_CHECK(p.kv_b.type != WeightType::kF16, "the CPU does not support float16 weights");
  const auto floats = [&](int64_t count) {
    return static_cast<float*>(ctx.scratch.allocate(count * sizeof(float)));
  };
  const int64_t group = std::min<int64_t>(kGroupHeads, p.num_heads);
  const int64_t window = std::min(kWindowPages, total_pages);
  const PrefillBuffers buffers = {
      .w_uk = floats(group * kUkFloats),
      .w_uv = floats(group * kUvFloats),
      .latent_rows = floats(window * kLatentFloats),
      .latent_panels = floats(window * kLatentFloats),
      .keys = floats(group * kWindowPages * kKeyFloats),
      .values = floats(group * kWindowPages * kValueFloats),
      .maxima = floats(num_tokens * p.num_heads),
      .sums = floats(num_tokens * p.num_heads),
      .workspaces = floats(ctx.pool.num_threads() * PrefillWorkspace::kFloats),
  };
  for (int64_t head_begin = 0; head_begin < p.num_heads; head_begin += group) {
    const int64_t heads = std::min(group, p.num_heads - head_begin);
    ctx.pool.parallel_for(heads, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) HWY_ATTR {
      for (int64_t head = begin; head < end; ++head) {
        const int64_t row = (head_begin + head) * (kNopeDim + kValueDim);
        widen_key_weights(p.kv_b, row, buffers.w_uk + head * kUkFloats);
        pack_value_weights(p.kv_b, row + kNopeDim, buffers.w_uv + head * kUvFloats);
      }
    });
    PrefillPage pages[kWindowPages];
    int64_t num_pages = 0;
    for (int i = 0; i < p.num_segments; ++i) {
      if (p.segments[i].q_len == 0) continue;
      for (int64_t key = 0; key < p.segments[i].kv_len; key += kPageSize) {
        pages[num_pages++] = {i, static_cast<int32_t>(key / kPageSize),
                              static_cast<int32_t>(std::min<int64_t>(kPageSize, p.segments[i].kv_len - key))};
        if (num_pages < kWindowPages) continue;
        attend_window(p, ctx, buffers, pages, num_pages, head_begin, heads);
        num_pages = 0;
      }
    }
    if (num_pages > 0) attend_window(p, ctx, buffers, pages, num_pages, head_begin, heads);
  }
}

#else  // the chains of linear.h need a fused multiply-add, which the reference emulates

void attend_prompts(const MlaPrefillParams& p, Context& ctx) {
  reference::mla_prefill(p, ctx);
}

#endif  // HWY_NATIVE_FMA

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(attend_prompts);

void mla_prefill(const MlaPrefillParams& p, Context& ctx) {
  HWY_DYNAMIC_DISPATCH(attend_prompts)(p, ctx);
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
