// These are the phases of un-absorbed attention in the current Highway target; attention_prefill.h describes
// them. Products go through gemm_tile-inl.h: every element is one fused chain, whatever rows share its tile.
#if defined(HADAL_KERNELS_CPU_SIMD_ATTENTION_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_ATTENTION_PREFILL_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_ATTENTION_PREFILL_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_ATTENTION_PREFILL_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/simd/attention_prefill.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_read-inl.h"
#include "kernels/cpu/simd/math_exp-inl.h"
#include "kernels/cpu/simd/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_NATIVE_FMA

// Computes C[rows, width] = A[rows, k] · panel, in tiles as high as the registers allow.
HWY_INLINE void multiply_rows(int64_t rows, TileArgs args) {
  for (int64_t row = 0; row < rows; row += kMaxTile) {
    gemm_tile(static_cast<int>(std::min<int64_t>(kMaxTile, rows - row)), args);
    args.a += kMaxTile * args.a_stride;
    args.c_out += kMaxTile * args.c_out_stride;
    if (args.c_in != nullptr) args.c_in += kMaxTile * args.c_in_stride;
  }
}

// Multiplies all 512 latents and applies the scales of block weights: `scales` is [4], or null for plain
// weights.
HWY_INLINE void expand_rows(int64_t rows, TileArgs args, int64_t b_stride, const float* scales) {
  args.b_stride = b_stride;
  if (scales == nullptr) {
    args.k = kKvLatentDim;
    multiply_rows(rows, args);
    return;
  }
  args.k = 128;
  for (int block = 0; block < kKvLatentDim / 128; ++block) {
    const float pair[2] = {scales[block], scales[block]};
    args.scales = pair;
    multiply_rows(rows, args);
    args.a += 128;
    args.b += 128 * b_stride;
    args.c_in = args.c_out;
    args.c_in_stride = args.c_out_stride;
  }
}

struct LoadInt8 {
  static constexpr int kBytes = 1;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) {
    const hn::Rebind<int8_t, KvD> d8;
    const hn::RebindToSigned<KvD> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
  }
};

// Converts rows [128] of W_UK to float32, without scales.
inline HWY_ATTR void widen_key_weights(const MatrixWeight& w, int64_t first_row, float* out) {
  const auto* data = static_cast<const std::byte*>(w.data);
  for (int64_t n = 0; n < kNopeDim; ++n, out += kKvLatentDim) {
    const int64_t at = (first_row + n) * w.row_stride;
    switch (w.type) {
      case WeightType::kF32:
        widen_values<LoadKvF32>(data + at * 4, kKvLatentDim, out);
        break;
      case WeightType::kBF16:
        widen_values<LoadKvBf16>(data + at * 2, kKvLatentDim, out);
        break;
      case WeightType::kFp8Block:
        widen_values<LoadKvE4m3>(data + at, kKvLatentDim, out);
        break;
      case WeightType::kInt8Block:
        widen_values<LoadInt8>(data + at, kKvLatentDim, out);
        break;
      case WeightType::kF16:
      case WeightType::kFp8Channel:
      case WeightType::kInt8Channel:
        break;  // refused by mla_prefill
    }
  }
}

// Packs W_UV [128, 512] into panels [128 / width][512][width].
inline HWY_ATTR void pack_value_weights(const MatrixWeight& w, int64_t first_row, float* out) {
  const auto* data = static_cast<const uint8_t*>(w.data);
  for (int64_t n = 0; n < kValueDim; n += kPanelRows, out += kPanelRows * kKvLatentDim) {
    const auto pack = [&](auto unpack, int64_t element_bytes) HWY_ATTR {
      const int64_t stride = w.row_stride * element_bytes;
      const uint8_t* rows = data + (first_row + n) * stride;
      unpack_panel<decltype(unpack)>(rows, rows + kLanes * stride, stride, kKvLatentDim, out);
    };
    switch (w.type) {
      case WeightType::kF32:
        pack(UnpackF32(), 4);
        break;
      case WeightType::kBF16:
        pack(UnpackBf16(), 2);
        break;
      case WeightType::kFp8Block:
        pack(UnpackE4m3(), 1);
        break;
      case WeightType::kInt8Block:
        pack(UnpackInt8(), 1);
        break;
      case WeightType::kF16:
      case WeightType::kFp8Channel:
      case WeightType::kInt8Channel:
        break;  // refused by mla_prefill
    }
  }
}

// Widens the records of one page to rows [64, 576] and panels [64 / width][576][width].
inline HWY_ATTR void widen_page(const PagedKv& kv, int32_t seq_idx, const PrefillPage& page, float* rows,
                                float* panels) {
  const int64_t id = kv.page_table[seq_idx * kv.page_table_stride + page.page];
  read_records(kv.pool + id * kv.layout.page_bytes(), kv.layout, page.num_keys, rows);
  std::memset(rows + page.num_keys * kKvRowDim, 0, (kPageSize - page.num_keys) * kKvRowDim * sizeof(float));
  constexpr int64_t kStride = kKvRowDim * int64_t{sizeof(float)};
  for (int64_t key = 0; key < kPageSize; key += kPanelRows, panels += kPanelRows * kKvRowDim) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(rows + key * kKvRowDim);
    unpack_panel<UnpackF32>(bytes, bytes + kLanes * kStride, kStride, kKvRowDim, panels);
  }
}

// Computes keys and values of one head in one page. key_scales and value_scales are [4] or null.
inline HWY_ATTR void expand_page(const float* w_uk, const float* w_uv, const float* latent_rows,
                                 const float* latent_panels, int64_t num_keys, const float* key_scales,
                                 const float* value_scales, float* keys, float* values) {
  for (int64_t key = 0; key < num_keys; key += kPanelRows) {
    const float* panel = latent_panels + key * kKvRowDim;
    float* out = keys + key * kQkDim;
    expand_rows(kNopeDim,
                {.a = w_uk, .a_stride = kKvLatentDim, .b = panel, .c_out = out, .c_out_stride = kPanelRows},
                kPanelRows, key_scales);
    std::memcpy(out + kNopeDim * kPanelRows, panel + kKvLatentDim * kPanelRows,
                kKvRopeDim * kPanelRows * sizeof(float));
  }
  for (int64_t d = 0; d < kValueDim; d += kPanelRows) {
    expand_rows(num_keys,
                {.a = latent_rows,
                 .a_stride = kKvRowDim,
                 .b = w_uv + d * kKvLatentDim,
                 .c_out = values + d * kPageSize,
                 .c_out_stride = kPanelRows},
                kPanelRows, value_scales);
  }
}

// Replaces the scores [64] of keys without a bit in `word` by −infinity.
HWY_INLINE void mask_row(float* scores, uint64_t word) {
  const DF d;
  const VF masked = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int j = 0; j < kPageSize; j += kLanes, word >>= kLanes) {
    uint8_t bytes[8];  // Highway may read 8 of them
    std::memcpy(bytes, &word, sizeof(word));
    hn::Store(hn::IfThenElse(hn::LoadMaskBits(d, bytes), hn::Load(d, scores + j), masked), d, scores + j);
  }
}

// Turns scores [64], in units of log 2, into weights relative to the row's new maximum and returns their sum.
// If the maximum is −infinity, then so are all scores, and the weights are 0.
HWY_INLINE float softmax_row(float* scores, float maximum) {
  const DF d;
  const VF peak = hn::Set(d, maximum == -std::numeric_limits<float>::infinity() ? 0.0F : maximum);
  VF sum = hn::Zero(d);
  for (int j = 0; j < kPageSize; j += kLanes) {
    const VF weight = exp2_nonpositive(d, hn::Sub(hn::Load(d, scores + j), peak));
    hn::Store(weight, d, scores + j);
    sum = hn::Add(sum, weight);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE float page_maximum(const float* scores) {
  const DF d;
  VF peak = hn::Load(d, scores);
  for (int j = kLanes; j < kPageSize; j += kLanes) peak = hn::Max(peak, hn::Load(d, scores + j));
  return hn::GetLane(hn::MaxOfLanes(d, peak));
}

// Processes one page for query rows [first_row, num_rows) of a tile. `position` is the position of the tile's
// first row relative to the page's first key. Row r attends to keys 0 … position + r or, with masks, to those
// of them that its mask selects.
inline HWY_ATTR void attend_page(const PrefillWorkspace& ws, int64_t first_row, int64_t num_rows,
                                 int64_t position, int64_t page_keys, const RowMasks& masks,
                                 const float* keys, const float* values) {
  const DF d;
  if (!masks.any(first_row, num_rows)) return;
  const int64_t rows = num_rows - first_row;
  const int64_t num_keys = std::min(page_keys, position + num_rows);
  for (int64_t key = 0; key < num_keys; key += kPanelRows) {
    multiply_rows(rows, {.a = ws.q + first_row * kQkDim,
                         .a_stride = kQkDim,
                         .b = keys + key * kQkDim,
                         .b_stride = kPanelRows,
                         .k = kQkDim,
                         .c_out = ws.scores + first_row * kPageSize + key,
                         .c_out_stride = kPageSize});
  }
  for (int64_t row = first_row; row < num_rows; ++row) {
    float* scores = ws.scores + row * kPageSize;
    const int64_t visible = std::min(num_keys, position + row + 1);
    std::fill(scores + visible, scores + kPageSize, -std::numeric_limits<float>::infinity());
    if (masks.words != nullptr) mask_row(scores, masks.words[row * masks.stride]);
    const float maximum = std::max(ws.maxima[row], page_maximum(scores));
    // A row that has attended to no key yet gets the exponent 0, because −infinity − −infinity would be NaN.
    const bool empty = maximum == -std::numeric_limits<float>::infinity();
    ws.rescale[row] = empty ? 0.0F : ws.maxima[row] - maximum;
    ws.maxima[row] = maximum;
  }
  for (int64_t row = first_row / kLanes * kLanes; row < num_rows; row += kLanes) {
    hn::Store(exp2_nonpositive(d, hn::Load(d, ws.rescale + row)), d, ws.rescale + row);
  }
  for (int64_t row = first_row; row < num_rows; ++row) {
    const float sum = softmax_row(ws.scores + row * kPageSize, ws.maxima[row]);
    const float factor = ws.rescale[row];
    ws.sums[row] = ws.sums[row] * factor + sum;
    if (factor == 1.0F) continue;
    float* out = ws.out + row * kValueDim;
    for (int i = 0; i < kValueDim; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, out + i), hn::Set(d, factor)), d, out + i);
    }
  }
  for (int64_t i = 0; i < kValueDim; i += kPanelRows) {
    float* out = ws.out + first_row * kValueDim + i;
    multiply_rows(rows, {.a = ws.scores + first_row * kPageSize,
                         .a_stride = kPageSize,
                         .b = values + i * kPageSize,
                         .b_stride = kPanelRows,
                         .k = num_keys,
                         .c_in = out,
                         .c_in_stride = kValueDim,
                         .c_out = out,
                         .c_out_stride = kValueDim});
  }
}

#endif  // HWY_NATIVE_FMA

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
