// Implements the ops without sums over a row: embedding, fed tokens, quantisation, SwiGLU, RoPE of q, and
// copies of KV pages.
//
// Grid: x has the rows, y the blocks of columns (a row of up to 2,048 values is one block). A thread has one
// chunk of eight values, so that at batch 1 the row spreads over as many warps as possible, and with
// thousands of rows 64 KB of loads are in flight on a multiprocessor. The kernels use no shared memory and no
// barriers; a quantisation group is sixteen lanes.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/reference.h"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/elementwise/tokens.h"

namespace hadal::cuda {
namespace {

struct RowGrid {
  dim3 grid;
  unsigned threads;
};
// Returns the grid for rows of `columns` values, a multiple of 8.
RowGrid row_grid(int64_t rows, int64_t columns) {
  const int64_t chunks = columns / kVec;
  const auto threads = static_cast<unsigned>(chunks >= 256 ? 256 : round_up(chunks, 32));
  return {dim3(static_cast<unsigned>(rows), static_cast<unsigned>((chunks + threads - 1) / threads)),
          threads};
}

__device__ __forceinline__ int my_column() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
}

template <typename T>
__global__ void __launch_bounds__(256) embedding_kernel(const EmbeddingParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = my_column();
  if (column >= p.hidden) return;
  const int64_t row = blockIdx.x;
  const int64_t id = p.ids[row];
  Floats8 x{};
  if (id >= 0 && id < p.vocab) x = load8(static_cast<const T*>(p.table) + id * p.hidden + column);
  store8(p.y + row * p.hidden + column, x);
}

__global__ void __launch_bounds__(256) feed_tokens_kernel(const FeedTokensParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.num_feeds) return;
  const int32_t slot = p.slots[i];
  if (slot >= 0) p.ids[p.rows[i]] = p.last_token[slot];
}

__global__ void __launch_bounds__(256) quantize_rows_kernel(const QuantizeParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = my_column();
  const int64_t row = blockIdx.x;
  Floats8 x{};
  if (column < p.n) x = load8(static_cast<const bf16*>(p.x) + row * p.x_stride + column);
  store8_quantized(p.y, row, column, x);
}

template <typename T>
__global__ void __launch_bounds__(256) silu_mul_kernel(const SiluMulParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = my_column();
  const int64_t row = blockIdx.x;
  if (p.num_used != nullptr && row >= *p.num_used) return;  // the whole block
  Floats8 y{};
  if (column < p.n) {
    const T* x = static_cast<const T*>(p.x) + row * 2 * p.n + column;
    const Floats8 gate = load8(x);
    const Floats8 up = load8(x + p.n);
#pragma unroll
    for (int i = 0; i < kVec; ++i) y.v[i] = silu_times(gate.v[i], up.v[i]);
    if (p.y != nullptr) store8(static_cast<T*>(p.y) + row * p.n + column, y);
  }
  if (p.y_quantized) store8_quantized(p.y_quantized, row, column, y);
}

// Grid: x has the rows, y the blocks of 32 heads; a head has eight threads with four pairs each.
template <typename T>
__global__ void __launch_bounds__(256) q_rope_kernel(const QRopeParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int head = static_cast<int>(blockIdx.y * (blockDim.x / 8) + threadIdx.x / 8);
  if (head >= p.num_heads) return;
  const int64_t row = blockIdx.x;
  const int part = threadIdx.x % 8;
  const Floats8 x =
      load8(static_cast<const T*>(p.q) + row * p.q_row_stride + head * p.q_head_stride + part * kVec);
  const float* table = p.cos_sin + int64_t{p.positions[row]} * kKvRopeDim + part * 4;
  const float4 cosine = *reinterpret_cast<const float4*>(table);
  const float4 sine = *reinterpret_cast<const float4*>(table + 32);
  const float cosines[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
  const float sines[4] = {sine.x, sine.y, sine.z, sine.w};
  Floats8 y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = rotate(x.v[2 * i], x.v[2 * i + 1], cosines[i], sines[i]);
    y.v[2 * i] = pair.x;
    y.v[2 * i + 1] = pair.y;
  }
  store8(static_cast<T*>(p.y) + row * p.y_row_stride + head * p.y_head_stride + part * kVec, y);
}

// Grid: copies × layers × 4 parts of a page. Every record is a multiple of 16 bytes.
__global__ void __launch_bounds__(256) copy_pages_kernel(const CopyPagesParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const PageCopyEntry entry = p.copies[blockIdx.x];
  std::byte* pool = p.pools[blockIdx.y];
  const auto* source = reinterpret_cast<const uint4*>(pool + entry.source * p.layout.page_bytes());
  auto* target = reinterpret_cast<uint4*>(pool + entry.target * p.layout.page_bytes());
  const int count = entry.num_rows * (p.layout.row_bytes() / 16);
  for (int i = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x); i < count;
       i += static_cast<int>(gridDim.z * blockDim.x)) {
    target[i] = source[i];
  }
  if (p.layout.index == KvIndex::kNone) return;
  const std::byte* from = p.index_pools[blockIdx.y] + entry.source * p.layout.index_page_bytes();
  std::byte* to = p.index_pools[blockIdx.y] + entry.target * p.layout.index_page_bytes();
  const auto* keys = reinterpret_cast<const uint4*>(from);
  const auto* scales = reinterpret_cast<const float*>(from + kKvIndexScalesOffset);
  for (int i = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x);
       i < entry.num_rows * (kKvIndexDim / 16); i += static_cast<int>(gridDim.z * blockDim.x)) {
    reinterpret_cast<uint4*>(to)[i] = keys[i];
  }
  if (blockIdx.z == 0 && static_cast<int>(threadIdx.x) < entry.num_rows)
    reinterpret_cast<float*>(to + kKvIndexScalesOffset)[threadIdx.x] = scales[threadIdx.x];
}

void check_index_pools(const CopyPagesParams& p) {
  HADAL_CHECK(
      p.layout.index == KvIndex::kNone || (p.layout.index == KvIndex::kE4M3 && p.index_pools != nullptr),
      "a device copies index keys in e4m3, between pools that are given");
}

}  // namespace

void embedding(const EmbeddingParams& p, const Launch& launch) {
  if (launch.reference || p.hidden % kVec != 0 || !on_16_bytes(p.table) || !on_16_bytes(p.y)) {
    return reference::embedding(p, launch);
  }
  const RowGrid shape = row_grid(p.m, p.hidden);
  if (p.f16) return launch_kernel<embedding_kernel<f16>>(launch, shape.grid, shape.threads, 0, p);
  launch_kernel<embedding_kernel<bf16>>(launch, shape.grid, shape.threads, 0, p);
}

// This kernel is also its own reference, because there is nothing to tune.
void feed_tokens(const FeedTokensParams& p, const Launch& launch) {
  launch_kernel<feed_tokens_kernel>(launch, static_cast<unsigned>((p.num_feeds + 255) / 256), 256, 0, p);
}

void quantize_rows(const QuantizeParams& p, const Launch& launch) {
  HADAL_CHECK(p.y && p.y.stride >= p.n && p.y.scale_stride >= p.m, "FP8 rows of stride {}, scales {}",
              p.y.stride, p.y.scale_stride);
  const bool wide = p.n % kVec == 0 && p.x_stride % kVec == 0 && on_16_bytes(p.x) && on_16_bytes(p.y) &&
                    (!is_per_token(p.y.format) || p.y.stride <= kMaxTokenColumns);
  if (launch.reference || !wide) return reference::quantize_rows(p, launch);
  if (is_per_token(p.y.format)) return quantize_tokens(p, launch);
  const RowGrid shape = row_grid(p.m, p.y.stride);
  launch_kernel<quantize_rows_kernel>(launch, shape.grid, shape.threads, 0, p);
}

void silu_mul(const SiluMulParams& p, const Launch& launch) {
  HADAL_CHECK(p.y != nullptr || p.y_quantized, "silu_mul has no output");
  HADAL_CHECK(!p.f16 || !p.y_quantized, "codes are made only from bf16 rows");
  if (p.y_quantized)
    HADAL_CHECK(p.y_quantized.stride >= p.n && p.y_quantized.scale_stride >= p.m, "FP8 rows of stride {}",
                p.y_quantized.stride);
  const bool per_token = p.y_quantized && is_per_token(p.y_quantized.format);
  const bool wide = p.n % kVec == 0 && on_16_bytes(p.x) && on_16_bytes(p.y) && on_16_bytes(p.y_quantized) &&
                    (!per_token || p.y_quantized.stride <= kMaxTokenColumns);
  if (launch.reference || !wide) return reference::silu_mul(p, launch);
  if (per_token) return silu_mul_tokens(p, launch);
  const RowGrid shape = row_grid(p.m, p.y_quantized ? p.y_quantized.stride : p.n);
  if (p.f16) return launch_kernel<silu_mul_kernel<f16>>(launch, shape.grid, shape.threads, 0, p);
  launch_kernel<silu_mul_kernel<bf16>>(launch, shape.grid, shape.threads, 0, p);
}

void q_rope(const QRopeParams& p, const Launch& launch) {
  const bool wide = (p.q_row_stride | p.q_head_stride | p.y_row_stride | p.y_head_stride) % kVec == 0 &&
                    on_16_bytes(p.q) && on_16_bytes(p.y) && on_16_bytes(p.cos_sin);
  if (launch.reference || !wide) return reference::q_rope(p, launch);
  const unsigned heads_per_block = p.num_heads < 32 ? static_cast<unsigned>(round_up(p.num_heads, 4)) : 32;
  const dim3 grid(static_cast<unsigned>(p.m), (p.num_heads + heads_per_block - 1) / heads_per_block);
  if (p.f16) return launch_kernel<q_rope_kernel<f16>>(launch, grid, heads_per_block * 8, 0, p);
  launch_kernel<q_rope_kernel<bf16>>(launch, grid, heads_per_block * 8, 0, p);
}

void copy_pages(const CopyPagesParams& p, const Launch& launch) {
  static_assert(kKvRowBytesBf16 % 16 == 0 && kKvRowBytesFp8E4M3 % 16 == 0 && kKvRowBytesFp8E5M2 % 16 == 0);
  check_index_pools(p);
  if (launch.reference) return reference::copy_pages(p, launch);
  const dim3 grid(static_cast<unsigned>(p.num_copies), static_cast<unsigned>(p.num_layers), 4);
  launch_kernel<copy_pages_kernel>(launch, grid, 256, 0, p);
}

}  // namespace hadal::cuda
