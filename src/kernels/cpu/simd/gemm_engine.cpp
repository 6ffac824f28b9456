#include "kernels/cpu/simd/gemm_engine.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/gemm_engine.cpp"
#include "hwy/foreach_target.h"
// These includes must follow foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/reference/silu.h"
#include "kernels/cpu/reference/weight_chain.h"
#include "kernels/cpu/simd/gemm_stream-inl.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/mlp-inl.h"
#include "kernels/cpu/simd/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {
namespace {

// PanelRows holds the two row groups of a panel.
struct PanelRows {
  const uint8_t* rows[2] = {};
  int64_t num_rows[2] = {};             // rows that exist, ≤ N
  const float* scales[2] = {};          // block weights
  const float* channel_scales[2] = {};  // channel weights: num_rows scales each
  int64_t stride = 0;                   // in bytes
  int64_t weight_bytes = 0;
};

PanelRows find_rows(const PanelTask& task) {
  const Product& product = *task.product;
  const bool gated = product.up != nullptr;
  PanelRows panel;
  panel.weight_bytes = weight_element_bytes(product.w.type);
  panel.stride = product.w.row_stride * panel.weight_bytes;
  for (int g = 0; g < 2; ++g) {
    const MatrixWeight& w = gated && g == 1 ? *product.up : product.w;
    int64_t row = task.panel * (gated ? kLanes : kPanelRows) + (gated ? 0 : g * kLanes);
    panel.num_rows[g] = std::min<int64_t>(kLanes, std::max<int64_t>(0, w.n - row));
    row = std::min(row, w.n - 1);
    panel.rows[g] = static_cast<const uint8_t*>(w.data) + row * panel.stride;
    if (is_block_scaled(w.type)) panel.scales[g] = w.scales + row / kBlockDepth * w.scale_stride;
    if (is_channel_scaled(w.type)) panel.channel_scales[g] = w.scales + row;
  }
  return panel;
}

// Applies the scales of channel weights, which is the last multiplication of every chain.
void scale_sums(const PanelRows& panel, int64_t m, float* sums) {
  const DF df;
  HWY_ALIGN float scales[kPanelRows] = {};
  for (int g = 0; g < 2; ++g) {
    std::memcpy(scales + g * kLanes, panel.channel_scales[g], panel.num_rows[g] * sizeof(float));
  }
  for (int64_t i = 0; i < m * kPanelRows; i += kLanes) {
    const VF scale = hn::Load(df, scales + i % kPanelRows);
    hn::StoreU(hn::Mul(hn::LoadU(df, sums + i), scale), df, sums + i);
  }
}

// Writes the sums [m, 2N] of a panel to their places in y.
void write_panel(const PanelTask& task, const PanelRows& panel, float* sums) {
  const Product& product = *task.product;
  if (is_channel_scaled(product.w.type)) scale_sums(panel, product.m, sums);
  if (product.up == nullptr) {
    const int64_t num_columns = panel.num_rows[0] + panel.num_rows[1];
    float* y = product.y + task.panel * kPanelRows;
    for (int64_t m = 0; m < product.m; ++m) {
      std::memcpy(y + m * product.y_stride, sums + m * kPanelRows, num_columns * sizeof(float));
    }
    return;
  }
  const PackedRows packing(product.m, kMaxTile);
  const int64_t column = task.panel * kLanes;
  for (int64_t tile = 0; tile < packing.num_tiles; ++tile) {
    const int height = packing.tile_height(tile);
    float* y = product.y + packing.offset(tile, column, product.w.n);
    for (int h = 0; h < height; ++h) {
      HWY_ALIGN float hidden[kLanes];
      silu_mul_lanes(sums, sums + kLanes, hidden);
      for (int64_t i = 0; i < panel.num_rows[0]; ++i) y[i * height + h] = hidden[i];
      sums += kPanelRows;
    }
  }
}

#if HWY_NATIVE_FMA

// Copies k weights, starting at `k_begin`, of a ragged panel's rows into 2N rows of kBlockDepth weights.
void stage_rows(const PanelRows& panel, int64_t k_begin, int64_t k, uint8_t* staged) {
  const int64_t staged_stride = kBlockDepth * panel.weight_bytes;
  std::memset(staged, 0, kPanelRows * staged_stride);
  for (int g = 0; g < 2; ++g) {
    for (int64_t r = 0; r < panel.num_rows[g]; ++r) {
      std::memcpy(staged + (g * kLanes + r) * staged_stride,
                  panel.rows[g] + r * panel.stride + k_begin * panel.weight_bytes, k * panel.weight_bytes);
    }
  }
}

// At least this much of a core's second-level cache is assumed to be free.
constexpr int64_t kSecondLevelBytes = 768 << 10;

struct PanelScratch {
  float* block;     // [kBlockDepth, 2N]
  float* sums;      // [m, 2N]
  uint8_t* staged;  // [2N, kBlockDepth], up to 4 bytes each; rows kStagedPadding further apart
  PanelScratch(float* scratch, int64_t m)
      : block(scratch),
        sums(block + kBlockDepth * kPanelRows),
        staged(reinterpret_cast<uint8_t*>(sums + m * kPanelRows)) {}
};

template <class W>
void run_stream_panel(const PanelTask& task, const PanelRows& panel, const PanelTask& next, float* scratch) {
  const Product& product = *task.product;
  const int64_t num_k = product.w.k;
  const PanelScratch buffers(scratch, product.m);
  StreamArgs args{.rows = {panel.rows[0], panel.rows[1]},
                  .stride = panel.stride,
                  .k = num_k,
                  .x = product.x,
                  .scales = {panel.scales[0], panel.scales[1]},
                  .sums = buffers.sums};
  if (panel.num_rows[0] == kLanes && panel.num_rows[1] == kLanes) {
    if (next.product != nullptr) {
      const PanelRows next_panel = find_rows(next);
      args.prefetch[0] = next_panel.rows[0];
      args.prefetch[1] = next_panel.rows[1];
    }
    stream_panel<W>(product.m, args);
  } else {
    args.stride = kBlockDepth * panel.weight_bytes;
    args.rows[0] = buffers.staged;
    args.rows[1] = buffers.staged + kLanes * args.stride;
    for (int64_t k = 0; k < num_k; k += kBlockDepth) {
      args.k = std::min(kBlockDepth, num_k - k);
      stage_rows(panel, k, args.k, buffers.staged);
      args.x = product.x + k * product.m;
      for (int g = 0; g < 2; ++g) {
        if (panel.scales[g] != nullptr) args.scales[g] = panel.scales[g] + k / kBlockDepth;
      }
      args.continue_sums = k > 0;
      stream_rows_dispatch<W>(product.m, args);
    }
  }
  write_panel(task, panel, buffers.sums);
}

// Prefetches the lines of rows [begin, end) of a panel's 2N rows, one widened block deep.
void prefetch_rows(const PanelRows& panel, int64_t k_begin, int64_t num_k, int64_t begin, int64_t end) {
  const int64_t bytes = std::min(kBlockDepth, num_k - k_begin) * panel.weight_bytes;
  for (int64_t r = begin; r < end; ++r) {
    const uint8_t* row = panel.rows[r / kLanes] + r % kLanes * panel.stride + k_begin * panel.weight_bytes;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
  }
}

template <class W>
void run_tiled_panel(const PanelTask& task, const PanelRows& panel, const PanelTask& next, float* scratch) {
  const Product& product = *task.product;
  const int64_t num_k = product.w.k;
  const PackedRows packing(product.m, kMaxTile);
  const PanelScratch buffers(scratch, product.m);
  const bool whole = panel.num_rows[0] == kLanes && panel.num_rows[1] == kLanes;
  // The last block is written straight to y.
  const bool direct = whole && product.up == nullptr && !is_channel_scaled(product.w.type);
  const PanelRows next_panel = next.product != nullptr ? find_rows(next) : panel;
  // If the activations, a panel of weights and the next panel fit a second-level cache together, the next
  // panel is prefetched in the order of its addresses. Otherwise only the next block of k is prefetched, row
  // by row.
  const bool linear_prefetch =
      product.m * num_k * 4 + 2 * kPanelRows * num_k * kWeightBytes<W> <= kSecondLevelBytes;
  for (int64_t k = 0; k < num_k; k += kBlockDepth) {
    const int64_t depth = std::min(kBlockDepth, num_k - k);
    const bool last = k + depth == num_k;
    if (whole) {
      const uint8_t* rows0 = panel.rows[0] + k * kWeightBytes<W>;
      const uint8_t* rows1 = panel.rows[1] + k * kWeightBytes<W>;
      if (panel.stride % kAliasedStride == 0) {
        constexpr int64_t kStride = kBlockDepth * kWeightBytes<W> + kStagedPadding;
        copy_rows(rows0, rows1, panel.stride, depth * kWeightBytes<W>, buffers.staged, kStride);
        unpack_panel<W>(buffers.staged, buffers.staged + kLanes * kStride, kStride, depth, buffers.block);
      } else {
        unpack_panel<W>(rows0, rows1, panel.stride, depth, buffers.block);
      }
    } else {
      const int64_t stride = kBlockDepth * kWeightBytes<W>;
      stage_rows(panel, k, depth, buffers.staged);
      unpack_panel<W>(buffers.staged, buffers.staged + kLanes * stride, stride, depth, buffers.block);
    }
    // The next block's bytes are prefetched while this one is multiplied, a few rows per tile.
    const PanelRows& ahead = last ? next_panel : panel;
    const int64_t ahead_k = last ? 0 : k + kBlockDepth;
    const int64_t ahead_num_k = last && next.product != nullptr ? next.product->w.k : num_k;
    float scales[2];
    TileArgs args{.b = buffers.block, .b_stride = kPanelRows, .k = depth};
    if (panel.scales[0] != nullptr) {
      scales[0] = panel.scales[0][k / kBlockDepth];
      scales[1] = panel.scales[1][k / kBlockDepth];
      args.scales = scales;
    }
    for (int64_t tile = 0; tile < packing.num_tiles; ++tile) {
      if (linear_prefetch) {
        const bool now = tile == 0 && next.product != nullptr;
        for (int g = 0; g < 2; ++g) {
          args.prefetch[g] = now ? next_panel.rows[g] + k * kWeightBytes<W> * kLanes : nullptr;
        }
        args.prefetch_step = now ? kWeightBytes<W> * kLanes : 0;
      } else {
        prefetch_rows(ahead, ahead_k, ahead_num_k, kPanelRows * tile / packing.num_tiles,
                      kPanelRows * (tile + 1) / packing.num_tiles);
      }
      float* sums = buffers.sums + packing.tile_begin(tile) * kPanelRows;
      args.a = product.x + packing.offset(tile, k, num_k);
      args.c_in = k == 0 ? nullptr : sums;
      args.c_in_stride = kPanelRows;
      args.c_out = sums;
      args.c_out_stride = kPanelRows;
      if (last && direct) {
        args.c_out = product.y + packing.tile_begin(tile) * product.y_stride + task.panel * kPanelRows;
        args.c_out_stride = product.y_stride;
      }
      gemm_tile(packing.tile_height(tile), args);
    }
  }
  if (!direct) write_panel(task, panel, buffers.sums);
}

template <class W>
void run_typed_panel(const PanelTask& task, const PanelTask& next, float* scratch) {
  const PanelRows panel = find_rows(task);
  if (task.product->m <= kMaxStream) {
    run_stream_panel<W>(task, panel, next, scratch);
  } else {
    run_tiled_panel<W>(task, panel, next, scratch);
  }
}

void run_panel(const PanelTask& task, const PanelTask& next, float* scratch) {
  switch (task.product->w.type) {
    case WeightType::kF32:
      return run_typed_panel<UnpackF32>(task, next, scratch);
    case WeightType::kBF16:
      return run_typed_panel<UnpackBf16>(task, next, scratch);
    case WeightType::kFp8Block:
    case WeightType::kFp8Channel:
      return run_typed_panel<UnpackE4m3>(task, next, scratch);
    case WeightType::kInt8Block:
    case WeightType::kInt8Channel:
      return run_typed_panel<UnpackInt8>(task, next, scratch);
    case WeightType::kF16:
      HADAL_CHECK(false, "on the CPU no weights are float16");
  }
}

#else  // no fused multiply-add instruction: the chain by std::fma, one element at a time

void run_panel(const PanelTask& task, const PanelTask&, float* scratch) {
  const Product& product = *task.product;
  const PanelRows panel = find_rows(task);
  const int64_t num_k = product.w.k;
  const PackedRows packing(product.m, kMaxTile);
  float* sums = scratch + kBlockDepth * kPanelRows;
  for (int column = 0; column < kPanelRows; ++column) {
    const int g = column / kLanes;
    if (column % kLanes >= panel.num_rows[g]) continue;
    const MatrixWeight& w = product.up != nullptr && g == 1 ? *product.up : product.w;
    const int64_t n =
        product.up != nullptr ? task.panel * kLanes + column % kLanes : task.panel * kPanelRows + column;
    for (int64_t k0 = 0; k0 < num_k; k0 += kBlockDepth) {
      const int64_t depth = std::min(num_k - k0, kBlockDepth);
      float codes[kBlockDepth];
      for (int64_t k = 0; k < depth; ++k) codes[k] = reference::weight_code(w, n, k0 + k);
      for (int64_t tile = 0; tile < packing.num_tiles; ++tile) {
        const int height = packing.tile_height(tile);
        for (int h = 0; h < height; ++h) {
          float& sum = sums[(packing.tile_begin(tile) + h) * kPanelRows + column];
          if (k0 == 0) sum = 0.0F;
          const float* x = product.x + packing.offset(tile, k0, num_k) + h;
          float chain = is_block_scaled(w.type) ? 0.0F : sum;
          for (int64_t k = 0; k < depth; ++k) chain = std::fma(x[k * height], codes[k], chain);
          sum = !is_block_scaled(w.type)
                    ? chain
                    : std::fma(chain, w.scales[n / kBlockDepth * w.scale_stride + k0 / kBlockDepth], sum);
        }
      }
    }
  }
  write_panel(task, panel, sums);
}

#endif

void pack_block(const float* x, int64_t x_stride, const int32_t* rows, int64_t m, int64_t k, int64_t tile,
                int64_t block, float* packed) {
  const PackedRows packing(m, kMaxTile);
  const int height = packing.tile_height(tile);
  const int64_t begin = packing.tile_begin(tile);
  const int64_t k_begin = block * kBlockDepth;
  const int64_t depth = std::min(kBlockDepth, k - k_begin);
  float* out = packed + packing.offset(tile, k_begin, k);
  for (int h = 0; h < height; ++h) {
    const float* source = x + (rows != nullptr ? rows[begin + h] : begin + h) * x_stride + k_begin;
    for (int64_t i = 0; i < depth; ++i) out[i * height + h] = source[i];
  }
}

void combine(const float* weights, const float* const* parts, int num_parts, const float* last, int64_t n,
             float* y) {
  int64_t i = 0;
#if HWY_NATIVE_FMA
  const DF df;
  for (; i + kLanes <= n; i += kLanes) {
    VF sum = hn::Zero(df);
    for (int j = 0; j < num_parts; ++j) {
      sum = hn::MulAdd(hn::Set(df, weights[j]), hn::LoadU(df, parts[j] + i), sum);
    }
    if (last != nullptr) sum = hn::Add(sum, hn::LoadU(df, last + i));
    hn::StoreU(sum, df, y + i);
  }
#endif
  for (; i < n; ++i) {
    float sum = 0.0F;
    for (int j = 0; j < num_parts; ++j) sum = std::fma(weights[j], parts[j][i], sum);
    y[i] = last != nullptr ? sum + last[i] : sum;
  }
}

constexpr Engine kEngine{kPanelRows, kMaxTile, run_panel, pack_block, combine};

}  // namespace

const Engine* target_engine() {
  return &kEngine;
}

const char* chosen_target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(target_engine);
HWY_EXPORT(chosen_target_name);

const Engine& engine() {
  return *HWY_DYNAMIC_DISPATCH(target_engine)();
}

const char* target_name() {
  return HWY_DYNAMIC_DISPATCH(chosen_target_name)();
}

}  // namespace hadal::cpu::simd
#endif
