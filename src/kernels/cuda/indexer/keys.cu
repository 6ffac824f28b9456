// Makes index keys and index queries.
//
// Each of a block's eight warps works on one key, or on one head of one query. Lane l holds values 4l … 4l +
// 3, so a warp loads 256 bytes and stores 128, and butterflies and sums are shuffles. There is no shared
// memory and no barrier. The norm's weights, which no kernel writes, are loaded before pdl_wait.
#include <cmath>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/indexer/indexer.h"
#include "kernels/cuda/indexer/keys.cuh"
#include "kernels/cuda/indexer/reference.h"

namespace hadal::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps) index_write_kernel(const DeviceIndexWriteParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float4 weight = reinterpret_cast<const float4*>(p.norm_weight)[lane];
  const float4 bias = reinterpret_cast<const float4*>(p.norm_bias)[lane];
  pdl_launch_dependents();
  pdl_wait();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= p.m) return;
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  IndexValues x = load_index_values(p.k + row * p.k_stride, lane);
  layer_norm(x, weight, bias, p.norm_eps);
  rotate_halves(x, p.cos_sin + int64_t{p.positions[row]} * kIndexRopeDim, lane);
  hadamard(x, lane);
  const float scale = index_scale(x);
  std::byte* page = p.pool + slot / kPageSize * (kPageSize * kKvIndexBytesE4M3);
  const int64_t offset = slot % kPageSize;
  reinterpret_cast<uint32_t*>(page + offset * kIndexHeadDim)[lane] = index_codes(x, scale);
  if (lane == 0) reinterpret_cast<float*>(page + kKvIndexScalesOffset)[offset] = scale;
}

__global__ void __launch_bounds__(32 * kWarps)
    index_query_kernel(const DeviceIndexQueryParams p, float factor) {
  pdl_launch_dependents();
  pdl_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t row = item / p.num_heads;
  if (row >= p.m) return;
  if (p.kv_len != nullptr && !selects_keys(p.kv_len[row], p.topk)) return;
  const int head = static_cast<int>(item % p.num_heads);
  IndexValues x = load_index_values(p.q + row * p.q_stride + int64_t{head} * kIndexHeadDim, lane);
  rotate_halves(x, p.cos_sin + int64_t{p.positions[row]} * kIndexRopeDim, lane);
  hadamard(x, lane);
  const float scale = index_scale(x);
  reinterpret_cast<uint32_t*>(p.codes + item * kIndexHeadDim)[lane] = index_codes(x, scale);
  if (lane == 0) p.weights[item] = p.w[row * p.w_stride + head] * factor * scale;
}

}  // namespace

void index_write(const DeviceIndexWriteParams& p, const Launch& launch) {
  HADAL_CHECK_GE(p.k_stride, kIndexHeadDim);
  HADAL_CHECK(reinterpret_cast<uintptr_t>(p.pool) % 4 == 0, "the pool is not 4-byte aligned");
  const bool wide = p.k_stride % 4 == 0 && on_8_bytes(p.k) && on_16_bytes(p.norm_weight) &&
                    on_16_bytes(p.norm_bias) && on_16_bytes(p.cos_sin);
  if (launch.reference || !wide) return reference::index_write(p, launch);
  launch_kernel<index_write_kernel>(launch, static_cast<unsigned>((p.m + kWarps - 1) / kWarps), 32 * kWarps,
                                    0, p);
}

void index_query(const DeviceIndexQueryParams& p, const Launch& launch) {
  HADAL_CHECK(p.num_heads >= 1 && p.num_heads <= kMaxIndexHeads, "num_heads is {}; must be 1 to {}",
              p.num_heads, kMaxIndexHeads);
  HADAL_CHECK_GE(p.q_stride, int64_t{p.num_heads} * kIndexHeadDim);
  HADAL_CHECK_GE(p.w_stride, p.num_heads);
  const bool wide = p.q_stride % 4 == 0 && on_8_bytes(p.q) && on_16_bytes(p.cos_sin) &&
                    reinterpret_cast<uintptr_t>(p.codes) % 4 == 0;
  if (launch.reference || !wide) return reference::index_query(p, launch);
  const int64_t items = p.m * p.num_heads;
  launch_kernel<index_query_kernel>(launch, static_cast<unsigned>((items + kWarps - 1) / kWarps), 32 * kWarps,
                                    0, p, index_query_factor(p.num_heads));
}

}  // namespace hadal::cuda
