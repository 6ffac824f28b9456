// Joins the splits of selected rows.
//
// Grid: it has two resident blocks of eight warps per multiprocessor. A warp joins one head of one row at a
// time, or a half or a quarter of the head's columns if there are warps for that: with few rows the time is
// that of one warp's loads, one after the other. Each lane has four of every 128 columns. Blocks end at once
// if no row is split. The splits are added in ascending order, however the columns are divided.
#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/sparse/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kQuads = kKvLatentDim / 128;
constexpr unsigned kAll = 0xffffffffU;
static_assert(kSparseMaxSplits <= 32, "a lane has the log-sum-exp of one split");

// Joins the selected rows; a warp has kOwnQuads · 128 columns of a head at a time.
template <int kOwnQuads>
__device__ __forceinline__ void merge_rows(const SparseArgs& args, int num_selected, int num_splits) {
  constexpr int kParts = kQuads / kOwnQuads;
  constexpr int kSplitsAtOnce = 16 / kOwnQuads;  // a lane has 16 loads under way
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_items = num_selected * args.num_heads * kParts;
  SelectedRows rows;
  for (int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
       item < num_items; item += static_cast<int>(gridDim.x) * kWarps) {
    const int first_quad = item % kParts * kOwnQuads;
    const int selected = item / kParts / args.num_heads;
    const int head = item / kParts % args.num_heads;
    const int row = rows.find(args, selected);
    const int64_t first = int64_t{selected} * num_splits * args.num_heads + head;
    const float own =
        lane < num_splits ? args.partial_lse[first + int64_t{lane} * args.num_heads] : -INFINITY;
    float top = own;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      top = fmaxf(top, __shfl_xor_sync(kAll, top, distance));
    const float base = top == -INFINITY ? 0.0F : top;
    float total = exp2_fast(own - base);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(kAll, total, distance);
    const float weight = total > 0.0F ? exp2_fast(own - base) / total : 0.0F;
    float4 sums[kOwnQuads] = {};
#pragma unroll kSplitsAtOnce
    for (int split = 0; split < num_splits; ++split) {
      const float of_split = __shfl_sync(kAll, weight, split);
      const float* values = args.partial_out + (first + int64_t{split} * args.num_heads) * kKvLatentDim;
#pragma unroll
      for (int i = 0; i < kOwnQuads; ++i) {
        const float4 four = reinterpret_cast<const float4*>(values)[32 * (first_quad + i) + lane];
        sums[i].x = fmaf(of_split, four.x, sums[i].x);
        sums[i].y = fmaf(of_split, four.y, sums[i].y);
        sums[i].z = fmaf(of_split, four.z, sums[i].z);
        sums[i].w = fmaf(of_split, four.w, sums[i].w);
      }
    }
    const int64_t out_row = int64_t{row} * args.num_heads + head;
    auto* out = reinterpret_cast<uint2*>(args.out + out_row * kKvLatentDim);
#pragma unroll
    for (int i = 0; i < kOwnQuads; ++i)
      out[32 * (first_quad + i) + lane] = {pack_bf16(sums[i].x, sums[i].y), pack_bf16(sums[i].z, sums[i].w)};
    if (lane == 0 && first_quad == 0 && args.lse != nullptr)
      args.lse[out_row] = total > 0.0F ? (base + log2f(total)) * kLn2 : -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads) mla_merge_sparse_kernel(const __grid_constant__ SparseArgs args) {
  pdl_wait();
  pdl_launch_dependents();
  const int num_selected = count_selected(args);
  const int num_splits = sparse_splits(num_selected, args.geometry);
  if (num_splits == 1) return;
  const int num_heads = num_selected * args.num_heads;
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  if (num_heads * 4 <= num_warps) return merge_rows<1>(args, num_selected, num_splits);
  if (num_heads * 2 <= num_warps) return merge_rows<2>(args, num_selected, num_splits);
  merge_rows<kQuads>(args, num_selected, num_splits);
}

}  // namespace

void mla_merge_sparse(const SparseArgs& args, const Launch& launch) {
  launch_kernel<mla_merge_sparse_kernel>(launch, dim3(static_cast<unsigned>(2 * args.geometry.num_blocks)),
                                         dim3(kThreads), 0, args);
}

}  // namespace hadal::cuda
