// Scores keys with warp-level products (mma): 16 heads are the rows of a product, 8 keys its columns. Codes
// are widened to float16, without rounding, because Hopper has FP8 products only for warpgroups.
//
// Grid: it has one resident block of eight warps per multiprocessor. A block computes its share of all units
// (32 keys of a group of rows) from the lengths alone. A group is either one row, whose units are distributed
// over the warps in turn, or eight rows. In a group of eight rows each warp scores the same keys for one row,
// so the keys are shared through the L1. A block without a share ends at once.
//
// A warp holds a row's values as operands in registers. It reads keys through its own ring of kStages units,
// which its lanes fill by cp.async. Warps share only the prefix sums of the groups, so only the computation
// of these sums has barriers. The order of k is permuted in the same way in both operands, so that a lane's
// bytes of a row are two chunks of 16.
//
// Sums are float32. The products are summed over k first. Then the weighted sum over heads is computed: each
// lane adds heads 16 i + g and 16 i + 8 + g with i ascending, and lanes are then added over g at distances 4,
// 2 and 1 (lane distances 16, 8 and 4). So the bits of a key's score depend neither on its place nor on the
// batch, and equal keys have equal scores. relu(NaN) is NaN.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/indexer/select.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 32 * kIndexScoreWarps;
constexpr int kStages = 4;
constexpr int kUnitBytes = kIndexUnitKeys * kIndexHeadDim;
constexpr int kStageBytes = kUnitBytes + kIndexUnitKeys * 4;  // codes, then scales
constexpr int kSharedBytes = kIndexScoreWarps * kStages * kStageBytes;
static_assert(kSharedBytes + kMaxIndexGroups * 4 + kIndexScoreWarps * 4 + 1024 <= kIndexScoreBytes);
constexpr unsigned kAll = 0xffffffffU;

// Returns four codes as float16, without rounding: the first two in x, the last two in y.
__device__ __forceinline__ uint2 widen(uint32_t codes) {
  const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(codes), __NV_E4M3);
  const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(codes >> 16), __NV_E4M3);
  return {low.x | static_cast<uint32_t>(low.y) << 16, high.x | static_cast<uint32_t>(high.y) << 16};
}

// Holds a lane's operands of a row: the values of heads 16 i + g and 16 i + 8 + g, and the weights of these
// heads. Heads beyond num_heads are zeros. A word of codes is the lane's part of 16 values of k.
template <int kTiles>
struct RowOperand {
  uint2 values[kTiles][2][8];  // [tile][g, 8 + g][words of chunk c, then of chunk 4 + c]
  float w[kTiles][2];

  __device__ __forceinline__ void load(const IndexScoreArgs& args, int row, int lane) {
    const int group = lane / 4, column = lane % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * i + 8 * half + group;
        const bool exists = head < args.num_heads;
        const int64_t at = int64_t{row} * args.num_heads + head;
        const auto* chunks = reinterpret_cast<const uint4*>(args.q + at * kIndexHeadDim);
        const uint4 k0 = exists ? chunks[column] : make_uint4(0, 0, 0, 0);
        const uint4 k1 = exists ? chunks[4 + column] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 8; ++j) values[i][half][j] = widen(word(j < 4 ? k0 : k1, j % 4));
        w[i][half] = exists ? args.w[at] : 0.0F;
      }
    }
  }
};

// Returns the score of key key_of_lane(lane) of a unit without the key's scale.
template <int kTiles>
__device__ __forceinline__ float score_unit(const RowOperand<kTiles>& row, const std::byte* keys, int lane) {
  const int group = lane / 4, column = lane % 4;
  float sums[8];
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    const uint32_t key = 8 * tile + group;
    const uint4 k0 = *reinterpret_cast<const uint4*>(keys + index_key_offset(key, column));
    const uint4 k1 = *reinterpret_cast<const uint4*>(keys + index_key_offset(key, 4 + column));
    float products[kTiles][4] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint2 b = widen(word(j < 4 ? k0 : k1, j % 4));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const auto& a = row.values[i];
        mma_16_bit<f16>(products[i], a[0][j].x, a[1][j].x, a[0][j].y, a[1][j].y, b.x, b.y);
      }
    }
    float even = 0.0F, odd = 0.0F;  // keys 8 tile + 2 column and the next one
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      even = fmaf(relu_or_nan(products[i][0]), row.w[i][0], even);
      odd = fmaf(relu_or_nan(products[i][1]), row.w[i][0], odd);
      even = fmaf(relu_or_nan(products[i][2]), row.w[i][1], even);
      odd = fmaf(relu_or_nan(products[i][3]), row.w[i][1], odd);
    }
    sums[2 * tile] = even;
    sums[2 * tile + 1] = odd;
  }
  // In each pair of lanes, one lane keeps the lower half of the sums and the other lane the upper half.
#pragma unroll
  for (int kept = 4; kept > 0; kept /= 2) {
    const int distance = 4 * kept;
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int j = 0; j < kept; ++j) {
      const float given = upper ? sums[j] : sums[j + kept];
      const float own = upper ? sums[j + kept] : sums[j];
      sums[j] = own + __shfl_xor_sync(kAll, given, distance);
    }
  }
  return sums[0];
}

// Scores the units first, first + step, … below last of one row. It is called by a whole warp.
template <int kTiles, bool kShared>
__device__ __forceinline__ void score_row(const IndexScoreArgs& args, const RowOperand<kTiles>& row_operand,
                                          int row, int num_keys, int first, int last, int step,
                                          std::byte* ring, int lane) {
  const int count = first < last ? (last - first + step - 1) / step : 0;
  if (count == 0) return;
  const int32_t* table = args.page_table + args.seq_idx[row] * args.page_table_stride;
  int32_t pages = 0;  // lane l has the page of unit l of the current 32 units
  const auto issue = [&](int i) {
    if (i < count) {
      if (i % 32 == 0 && i + lane < count) pages = table[(first + (i + lane) * step) / 2];
      const int64_t page = __shfl_sync(kAll, pages, i % 32);
      const int half = (first + i * step) % 2;
      const std::byte* source = args.pool + page * (kPageSize * kKvIndexBytesE4M3);
      const std::byte* codes = source + half * kUnitBytes;
      const uint32_t stage = shared_address(ring + i % kStages * kStageBytes);
#pragma unroll
      for (int j = 0; j < kUnitBytes / 512; ++j) {
        const uint32_t chunk = 32 * j + lane;  // of the unit
        const uint32_t to = stage + index_key_offset(chunk / 8, chunk % 8);
        if constexpr (kShared) {
          copy_async_16_through_l1(to, codes + chunk * 16);
        } else {
          copy_async_16(to, codes + chunk * 16);
        }
      }
      copy_async_4(stage + kUnitBytes + 4 * lane,
                   source + kKvIndexScalesOffset + (half * kIndexUnitKeys + lane) * 4);
    }
    copy_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) issue(i);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    issue(i + kStages - 1);
    copy_async_wait_groups<kStages - 1>();
    __syncwarp();
    const std::byte* stage = ring + i % kStages * kStageBytes;
    const float sum = score_unit(row_operand, stage, lane);
    const int key = key_of_lane(lane);
    const float score = sum * reinterpret_cast<const float*>(stage + kUnitBytes)[key];
    const int position = (first + i * step) * kIndexUnitKeys + key;
    if (position < num_keys) args.scores[row * args.score_stride + position] = score;
    __syncwarp();  // the stage is free
  }
}

// Sets ends[g] to the number of units in groups 0 … g, and returns the number of all units.
template <int kGroupRows>
__device__ int sum_units(const IndexScoreArgs& args, int* ends, int* warp_sums) {
  const int num_groups = (args.num_rows + kGroupRows - 1) / kGroupRows;
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  int before = 0;
  for (int begin = 0; begin < num_groups; begin += kThreads) {
    const int group = begin + t;
    int units = 0;
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) {
      const int row = group * kGroupRows + i;
      if (row < args.num_rows) units = max(units, index_units(args.kv_len[row], args.topk));
    }
    int sum = units;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kAll, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    int all = before;
    for (int i = 0; i < kIndexScoreWarps; ++i) {
      if (i == warp) sum += all;
      all += warp_sums[i];
    }
    if (group < num_groups) ends[group] = sum;
    before = all;
    __syncthreads();  // warp_sums is free, and ends is complete up to here
  }
  return before;
}

template <int kTiles, int kGroupRows>
__global__ void __launch_bounds__(kThreads, 1) index_score_kernel(const IndexScoreArgs args) {
  extern __shared__ __align__(128) std::byte rings[];
  __shared__ int ends[kMaxIndexGroups];
  __shared__ int warp_sums[kIndexScoreWarps];
  pdl_wait();
  pdl_launch_dependents();  // the blocks that choose fit beside these
  const int num_units = sum_units<kGroupRows>(args, ends, warp_sums);
  const int block = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
  int unit = share_begin(num_units, block, num_blocks);
  const int end = share_begin(num_units, block + 1, num_blocks);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* ring = rings + warp * kStages * kStageBytes;
  int group = 0;
  if (unit < end) {  // binary search for the first group that ends after `unit`
    for (int step = kMaxIndexGroups / 2; step > 0; step /= 2) {
      const int before = group + step - 1;
      if (before * kGroupRows < args.num_rows && ends[before] <= unit) group += step;
    }
  }
  while (unit < end) {
    const int group_begin = group == 0 ? 0 : ends[group - 1];
    const int group_end = ends[group];
    const int first = unit - group_begin;
    const int last = min(end, group_end) - group_begin;
    const int row = kGroupRows == 1 ? group : group * kGroupRows + warp;
    if (row < args.num_rows && first < last) {
      const int num_keys = args.kv_len[row];
      const int row_last = min(last, index_units(num_keys, args.topk));
      if (first < row_last) {
        RowOperand<kTiles> operand;
        operand.load(args, row, lane);
        if constexpr (kGroupRows == 1) {
          score_row<kTiles, false>(args, operand, row, num_keys, first + warp, row_last, kIndexScoreWarps,
                                   ring, lane);
        } else {
          score_row<kTiles, true>(args, operand, row, num_keys, first, row_last, 1, ring, lane);
        }
      }
    }
    unit = group_end;
    ++group;
  }
}

template <int kGroupRows>
void launch_score(const IndexScoreArgs& args, const Launch& launch) {
  const auto run = [&]<int kTiles>() {
    launch_kernel<index_score_kernel<kTiles, kGroupRows>>(launch, dim3(static_cast<unsigned>(launch.num_sms)),
                                                          dim3(kThreads), kSharedBytes, args);
  };
  switch ((args.num_heads + 15) / 16) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 3:
      return run.template operator()<3>();
    default:
      return run.template operator()<4>();
  }
}

}  // namespace

void index_score(const IndexScoreArgs& args, int group_rows, const Launch& launch) {
  if (group_rows == 1) return launch_score<1>(args, launch);
  HADAL_CHECK_EQ(group_rows, kIndexScoreWarps);
  launch_score<kIndexScoreWarps>(args, launch);
}

}  // namespace hadal::cuda
