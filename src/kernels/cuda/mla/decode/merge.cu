// Implements the merge kernel, which joins the partial results of split sequences if the decode kernel does
// not (DecodeGeometry::merge_inside). Partial results are float32, or float16 and scaled (HalfPartials).
//
// Grid: resident blocks walk the rows of all split sequences. The number of these sequences is in the plan
// and may be read before pdl_wait, because all of decode's blocks have passed their own pdl_wait when this
// kernel begins. A thread has 16 bytes of a partial row, and loads them for several splits at once. If there
// are few rows, kGroups groups of threads share the splits of one row, and their sums are added in shared
// memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/mla/decode/shared/partials.cuh"

namespace hadal::cuda {
namespace {

template <typename Part>
struct MergedColumns {
  float values[16 / sizeof(Part)];  // a share of the weighted sum
  float lse;                        // log-sum-exp of the row, natural
};

// Adds the splits of a row; called by a converged warp. Each thread sums the `quad`-th 16 bytes of the row.
// kGroups groups share the splits: group g has splits g, g + kGroups, …. The order of additions depends only
// on the number of splits and kGroups. The first partial results are in flight while the weights are
// computed.
template <typename Part, int kGroups, int kInFlight>
__device__ __forceinline__ MergedColumns<Part> merge_splits(const DecodeArgs& args, const DecodeMerge& merge,
                                                            int row, int quad, int group) {
  constexpr int kColumns = 16 / sizeof(Part);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_splits = merge.num_splits;
  const int64_t first = int64_t{merge.first_slot} * args.rows + row;
  const float* lse = args.partial_lse + first;
  const auto* partial =
      reinterpret_cast<const uint4*>(reinterpret_cast<const Part*>(args.partial_out) + first * kKvLatentDim) +
      quad;
  const uint32_t stride = args.rows * (kKvLatentDim / kColumns);
  const auto lse_of = [&](int s) { return s < num_splits ? __ldcg(lse + s * args.rows) : -INFINITY; };
  // A warp's columns all belong to one half of the row.
  const float* scales = half_partials(args).scales + 2 * first + quad / 32;
  const auto scale_of = [&](int s) {
    return sizeof(Part) == 2 && s < num_splits ? __ldcg(scales + s * args.rows * 2) : 1.0F;
  };

  float own_lse = lse_of(lane);
  float own_scale = scale_of(lane);
  uint4 words[kInFlight];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int number = begin + i * kGroups + group;
      words[i] = number < num_splits ? __ldcg(partial + number * stride) : make_uint4(0, 0, 0, 0);
    }
  };
  load(0);

  float top = own_lse;
  for (int chunk = 32; chunk < num_splits; chunk += 32) top = fmaxf(top, lse_of(chunk + lane));
  top = warp_max(top);
  const float base = top == -INFINITY ? 0.0F : top;
  float total = exp2_fast(own_lse - base);
  for (int chunk = 32; chunk < num_splits; chunk += 32) total += exp2_fast(lse_of(chunk + lane) - base);
  total = warp_sum(total);
  const float scale = total > 0.0F ? 1.0F / total : 0.0F;

  MergedColumns<Part> merged{};
  merged.lse = total > 0.0F ? (base + log2f(total)) * kLn2 : -INFINITY;
  float own_weight = exp2_fast(own_lse - base) * scale * own_scale;
#pragma unroll 1
  for (int begin = 0; begin < num_splits; begin += kInFlight * kGroups) {
    if (begin > 0) {
      load(begin);
      if (begin % 32 == 0) {
        own_weight = exp2_fast(lse_of(begin + lane) - base) * scale * scale_of(begin + lane);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const float weight = __shfl_sync(0xffffffffU, own_weight, (begin + i * kGroups + group) % 32);
      const uint32_t w[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (sizeof(Part) == 4) {
          merged.values[c] += weight * __uint_as_float(w[c]);
        } else {
          const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&w[c]));
          merged.values[2 * c] += weight * two.x;
          merged.values[2 * c + 1] += weight * two.y;
        }
      }
    }
  }
  return merged;
}

// Joins all split rows; kBlocks blocks are resident on a multiprocessor.
template <typename Part, typename Out, int kThreads, int kBlocks, int kGroups, int kInFlight>
__global__ void __launch_bounds__(kThreads, kBlocks)
    mla_merge_kernel(const __grid_constant__ DecodeArgs args) {
  static_assert(32 % (kGroups * kInFlight) == 0, "a step has its weights in one word of the warp's lanes");
  constexpr int kColumns = 16 / sizeof(Part);
  constexpr int kOfRow = kKvLatentDim / kColumns;  // threads of a row
  constexpr int kRows = kThreads / kOfRow / kGroups;
  static_assert(kGroups == 1 || kRows == 1);
  __shared__ float shares[kGroups > 1 ? kGroups : 1][kGroups > 1 ? kKvLatentDim : 1];
  const int t = static_cast<int>(threadIdx.x);
  const int quad = t % kOfRow;
  const int group = kGroups > 1 ? t / kOfRow : 0;
  const int of_block = kGroups > 1 ? 0 : t / kOfRow;
  // This comes before the wait, so that the next kernel's blocks begin as soon as decode's blocks end. The
  // memory that they may read early was complete before this kernel could begin.
  pdl_launch_dependents();
  // The first item's entry is read together with the number of items, which saves the latency of one read.
  // (The array has num_seqs entries.)
  int item = static_cast<int>(blockIdx.x) * kRows + of_block;
  DecodeMerge merge = args.plan.merges[min(item / args.rows, args.num_seqs - 1)];
  const int num_items = *args.plan.num_merges * args.rows;
  if (static_cast<int>(blockIdx.x) * kRows >= num_items && blockIdx.x > 0) return;
  pdl_wait();
  Out* out = static_cast<Out*>(args.out);
  for (bool first = true; item < num_items; item += static_cast<int>(gridDim.x) * kRows, first = false) {
    if (!first) merge = args.plan.merges[item / args.rows];
    const int row = item % args.rows;
    const MergedColumns<Part> merged = merge_splits<Part, kGroups, kInFlight>(args, merge, row, quad, group);
    const int64_t out_row = int64_t{merge.seq} * args.rows + row;
    if (quad == 0 && group == 0 && args.lse != nullptr) args.lse[out_row] = merged.lse;
    if constexpr (kGroups > 1) {
#pragma unroll
      for (int c = 0; c < kColumns; c += 4) {
        *reinterpret_cast<float4*>(&shares[group][quad * kColumns + c]) = {
            merged.values[c], merged.values[c + 1], merged.values[c + 2], merged.values[c + 3]};
      }
      __syncthreads();
      for (int two = t; two < kKvLatentDim / 2; two += kThreads) {
        float2 sum = {0.0F, 0.0F};
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const float2 share = *reinterpret_cast<const float2*>(&shares[g][2 * two]);
          sum = {sum.x + share.x, sum.y + share.y};
        }
        *reinterpret_cast<uint32_t*>(out + out_row * kKvLatentDim + 2 * two) = pack_two<Out>(sum.x, sum.y);
      }
      __syncthreads();  // shares are free again
    } else {
      Out* to = out + out_row * kKvLatentDim + quad * kColumns;
      uint32_t w[kColumns / 2];
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) w[c / 2] = pack_two<Out>(merged.values[c], merged.values[c + 1]);
      if constexpr (kColumns == 8) {
        *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
      } else {
        *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
      }
    }
  }
}

template <typename Part, typename Out>
void launch_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  // If there are few rows, more threads work on each row. This choice decides the order of additions, so with
  // fixed splits it must not depend on the batch.
  const int most_items = args.num_seqs * args.rows;
  constexpr int kOfRow = kKvLatentDim * sizeof(Part) / 16;  // threads of a row
  const auto blocks = [&](int each, int rows) {
    return dim3(static_cast<unsigned>(std::min(launch.num_sms * each, (most_items + rows - 1) / rows)));
  };
  if (!geometry.fixed_splits && most_items <= launch.num_sms * 2) {
    launch_kernel<mla_merge_kernel<Part, Out, 512, 2, 512 / kOfRow, 4>>(launch, blocks(2, 1), dim3(512), 0,
                                                                        args);
  } else if (geometry.num_parts < 4 * args.num_seqs) {  // few splits per sequence
    launch_kernel<mla_merge_kernel<Part, Out, 256, 4, 1, 4>>(launch, blocks(4, 256 / kOfRow), dim3(256), 0,
                                                             args);
  } else {
    launch_kernel<mla_merge_kernel<Part, Out, 256, 3, 1, 8>>(launch, blocks(3, 256 / kOfRow), dim3(256), 0,
                                                             args);
  }
}

}  // namespace

void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  if (args.out_f16) {
    HADAL_CHECK(!geometry.half_partials, "a float16 output has float32 partial results");
    launch_merge<float, f16>(args, geometry, launch);
  } else if (geometry.half_partials) {
    launch_merge<f16, bf16>(args, geometry, launch);
  } else {
    launch_merge<float, bf16>(args, geometry, launch);
  }
}

}  // namespace hadal::cuda
