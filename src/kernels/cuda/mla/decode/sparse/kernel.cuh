// Computes decode attention over selections of slots, with warp-level products (16 × 8 × 16, bf16).
//
// Grid: it has one resident block of eight warps per multiprocessor. A block works on every num_blocks-th
// item (mla/plan/sparse.h), and ends at once if there is none. For each chunk of 64 slots the block gathers
// the records, and its warps have two roles, one after the other:
// - scores: warp w has 16 heads (w mod tiles of 16) and 64 / (8 / tiles) of the keys;
// - output: warp w has all heads of the tile and columns [64 w, 64 w + 64), in registers for the whole item.
//
// Shared memory holds the queries, the records as bf16 and the weights. 16-bit caches have two tiles of
// records, one of which is being filled; FP8 caches have one tile and a buffer for the next raw records. With
// FP8 there are four copies of the weights, each multiplied by the scale of 128 latents. Sums are float32;
// FP8 scores are added up per 128 latents, and each such sum is multiplied by its scale.
//
// | barrier, per chunk     | orders                                                                       |
// |------------------------|------------------------------------------------------------------------------|
// | 1 (top)                | all copies have arrived; the previous chunk's records and weights are free   |
// | 2 (FP8)                | the tile is complete; the raw buffer is free for the next gather             |
// | 3                      | maxima of all key ranges are written                                         |
// | 4                      | weights and factors are written; maxima are free                             |
//
// After the last chunk, two more barriers hand over the sums of the rows and their reciprocals.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/mla/decode/sparse/gather.cuh"
#include "kernels/cuda/mla/decode/sparse/rows.cuh"

namespace hadal::cuda {
namespace sparse {

inline constexpr int kWarps = kThreads / 32;

// Byte offsets in shared memory.
template <KvFormat kFormat, int kHeads>
struct Layout {
  static constexpr bool kFp8 = kFormat == KvFormat::kFp8E4M3;
  static constexpr int kTiles = kHeads / 16;          // tiles of 16 heads
  static constexpr int kKeyRanges = kWarps / kTiles;  // warps that share 16 heads
  static constexpr int kTileBytes = kSparseChunk * kKvRowDim * 2;
  static constexpr int kWeightsBytes = kHeads * kSparseChunk * 2;
  static constexpr int kWeightSets = kFp8 ? kKvNumScales : 1;

  static constexpr int kQueries = 0;
  static constexpr int kRecords = kQueries + kHeads * kKvRowDim * 2;
  static constexpr int kRaw = kRecords + (kFp8 ? 1 : 2) * kTileBytes;
  static constexpr int kWeights = kRaw + (kFp8 ? kSparseChunk * kKvRowBytesFp8E4M3 : 0);
  static constexpr int kScales = kWeights + kWeightSets * kWeightsBytes;
  static constexpr int kMaxima = kScales + (kFp8 ? kKvNumScales * kSparseChunk * 4 : 0);
  static constexpr int kFactors = kMaxima + kKeyRanges * kHeads * 4;
  static constexpr int kRowMaxima = kFactors + kHeads * 4;
  static constexpr int kBytes = kRowMaxima + kHeads * 4;
  static_assert(kBytes <= kMaxSharedBytes, "the shared memory of a block");
  static_assert(kWeights % 128 == 0 && kRaw % 128 == 0);
};

// Computes one item. In a product, a lane has the rows of heads g and g + 8, where g = lane / 4, and the
// columns 2 (lane mod 4) and 2 (lane mod 4) + 1.
template <KvFormat kFormat, int kHeads>
class Item {
  using L = Layout<kFormat, kHeads>;

 public:
  __device__ __forceinline__ explicit Item(std::byte* shared) : shared_(shared) {}

  // Adds a chunk whose records lie in `tile` to the output. Records from num_keys on do not exist.
  __device__ __forceinline__ void add_chunk(uint32_t tile, int num_keys, float scale_log2) {
    float scores[L::kTiles][4];
    score(tile, scores);
    weigh(scores, num_keys, scale_log2);
    add_values(tile);
  }

  // Stores outputs and log-sum-exps of the rows. It is called once after the last chunk.
  __device__ __forceinline__ void finish(const SparseArgs& args, int row, int first_head, bool is_whole,
                                         int64_t partial_row) {
    float* sums = at<float>(L::kMaxima);
    float* factors = at<float>(L::kFactors);
    float* row_maxima = at<float>(L::kRowMaxima);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      const int head = own_head(half);
      if (column() == 0) sums[key_range() * kHeads + head] = sum;
      if (column() == 0 && key_range() == 0) row_maxima[head] = maximum_[half];
    }
    __syncthreads();
    const int num_heads = min(kHeads, args.num_heads - first_head);
    const int t = static_cast<int>(threadIdx.x);
    if (t < kHeads) {
      float sum = 0.0F;
      for (int i = 0; i < L::kKeyRanges; ++i) sum += sums[i * kHeads + t];
      factors[t] = sum > 0.0F ? 1.0F / sum : 0.0F;
      const float lse = sum > 0.0F ? row_maxima[t] + log2f(sum) : -INFINITY;
      if (t < num_heads) {
        if (!is_whole) {
          args.partial_lse[partial_row + t] = lse;
        } else if (args.lse != nullptr) {
          args.lse[int64_t{row} * args.num_heads + first_head + t] = lse * kLn2;
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < L::kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = 16 * i + 8 * half + group();
        if (head >= num_heads) continue;
        const float factor = factors[head];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column_idx = 64 * warp() + 8 * j + 2 * column();
          const float low = out_[i][j][2 * half] * factor;
          const float high = out_[i][j][2 * half + 1] * factor;
          if (is_whole) {
            bf16* to = args.out + (int64_t{row} * args.num_heads + first_head + head) * kKvLatentDim;
            *reinterpret_cast<uint32_t*>(to + column_idx) = pack_bf16(low, high);
          } else {
            float* to = args.partial_out + (partial_row + head) * kKvLatentDim;
            *reinterpret_cast<float2*>(to + column_idx) = {low, high};
          }
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  static __device__ __forceinline__ int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  static __device__ __forceinline__ int group() {
    return lane() / 4;
  }
  static __device__ __forceinline__ int column() {
    return lane() % 4;
  }
  // These give the warp's and the lane's places in the scores.
  static __device__ __forceinline__ int key_range() {
    return warp() / L::kTiles;
  }
  static __device__ __forceinline__ int own_head(int half) {
    return warp() % L::kTiles * 16 + 8 * half + group();
  }
  static __device__ __forceinline__ int own_key(int j) {
    return key_range() * 8 * L::kTiles + 8 * j + 2 * column();
  }
  template <typename T>
  __device__ __forceinline__ T* at(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }

  // Adds 32 of k, from 16-byte chunk `chunk` on, to the products of the warp's heads and keys.
  __device__ __forceinline__ void add_products(uint32_t tile, int chunk, float (&sums)[L::kTiles][4]) const {
    const uint32_t queries = shared_address(shared_ + L::kQueries);
    const int head = warp() % L::kTiles * 16 + lane() % 16;
    uint32_t first[4], second[4];
    load_matrix_x4(queries + sparse_tile_offset(head, chunk + lane() / 16), first);
    load_matrix_x4(queries + sparse_tile_offset(head, chunk + 2 + lane() / 16), second);
#pragma unroll
    for (int j = 0; j < L::kTiles; ++j) {
      const int key = key_range() * 8 * L::kTiles + 8 * j + lane() % 8;
      uint32_t keys[4];
      load_matrix_x4(tile + sparse_tile_offset(key, chunk + lane() / 8), keys);
      mma_16_bit<bf16>(sums[j], first[0], first[1], first[2], first[3], keys[0], keys[1]);
      mma_16_bit<bf16>(sums[j], second[0], second[1], second[2], second[3], keys[2], keys[3]);
    }
  }

  __device__ __forceinline__ void score(uint32_t tile, float (&scores)[L::kTiles][4]) const {
    constexpr int kGroupChunks = kKvScaleGroup * 2 / 16;
#pragma unroll
    for (auto& values : scores) {
#pragma unroll
      for (float& value : values) value = 0.0F;
    }
    if constexpr (L::kFp8) {
      const float* scales = at<float>(L::kScales);
#pragma unroll 1
      for (int g = 0; g < kKvNumScales; ++g) {
        float sums[L::kTiles][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < kGroupChunks; chunk += 4)
          add_products(tile, g * kGroupChunks + chunk, sums);
#pragma unroll
        for (int j = 0; j < L::kTiles; ++j) {
          const float2 scale = *reinterpret_cast<const float2*>(scales + g * kSparseChunk + own_key(j));
#pragma unroll
          for (int e = 0; e < 4; ++e)
            scores[j][e] = fmaf(sums[j][e], e % 2 == 0 ? scale.x : scale.y, scores[j][e]);
        }
      }
#pragma unroll
      for (int chunk = kLatentChunks; chunk < kRowChunks; chunk += 4) add_products(tile, chunk, scores);
    } else {
#pragma unroll 6
      for (int chunk = 0; chunk < kRowChunks; chunk += 4) add_products(tile, chunk, scores);
    }
  }

  // Turns scores into weights 2^(score − maximum), rescales the row sums so far, and stores the factors by
  // which add_values rescales the output.
  __device__ __forceinline__ void weigh(float (&scores)[L::kTiles][4], int num_keys, float scale_log2) {
    float* maxima = at<float>(L::kMaxima);
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < L::kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[j][e] = own_key(j) + e % 2 < num_keys ? scores[j][e] * scale_log2 : -INFINITY;
        most[e / 2] = fmaxf(most[e / 2], scores[j][e]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffU, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffU, most[half], 2));
      if (column() == 0) maxima[key_range() * kHeads + own_head(half)] = most[half];
    }
    __syncthreads();
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = maximum_[half];
#pragma unroll
      for (int i = 0; i < L::kKeyRanges; ++i) maximum = fmaxf(maximum, maxima[i * kHeads + own_head(half)]);
      base[half] = maximum == -INFINITY ? 0.0F : maximum;
      const float factor = exp2_fast(maximum_[half] - base[half]);
      maximum_[half] = maximum;
      sum_[half] *= factor;
      if (column() == 0 && key_range() == 0) at<float>(L::kFactors)[own_head(half)] = factor;
    }
#pragma unroll
    for (int j = 0; j < L::kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = exp2_fast(scores[j][2 * half] - base[half]);
        const float high = exp2_fast(scores[j][2 * half + 1] - base[half]);
        sum_[half] += low + high;
        const uint32_t offset =
            swizzle_128(own_head(half), own_key(j) / 8) + 4 * static_cast<uint32_t>(column());
#pragma unroll
        for (int set = 0; set < L::kWeightSets; ++set) {
          float2 scale = {1.0F, 1.0F};
          if constexpr (L::kFp8) {
            scale = *reinterpret_cast<const float2*>(at<float>(L::kScales) + set * kSparseChunk + own_key(j));
          }
          *at<uint32_t>(L::kWeights + set * L::kWeightsBytes + static_cast<int>(offset)) =
              pack_bf16(low * scale.x, high * scale.y);
        }
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void add_values(uint32_t tile) {
    const float* factors = at<float>(L::kFactors);
    float factor[L::kTiles][2];
    bool rescales = false;
#pragma unroll
    for (int i = 0; i < L::kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor[i][half] = factors[16 * i + 8 * half + group()];
        rescales |= factor[i][half] != 1.0F;
      }
    }
    if (__any_sync(0xffffffffU, rescales)) {
#pragma unroll
      for (int i = 0; i < L::kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out_[i][j][e] *= factor[i][e / 2];
        }
      }
    }
    // A warp's 64 columns belong to one scale.
    const int set = L::kFp8 ? warp() / 2 : 0;
    const uint32_t weights = shared_address(shared_ + L::kWeights + set * L::kWeightsBytes);
#pragma unroll
    for (int step = 0; step < kSparseChunk / 16; ++step) {
      uint32_t a[L::kTiles][4];
#pragma unroll
      for (int i = 0; i < L::kTiles; ++i)
        load_matrix_x4(weights + swizzle_128(16 * i + lane() % 16, 2 * step + lane() / 16), a[i]);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        uint32_t values[4];
        load_matrix_x4_transposed(
            tile + sparse_tile_offset(16 * step + lane() % 16, 8 * warp() + j + lane() / 16), values);
#pragma unroll
        for (int i = 0; i < L::kTiles; ++i) {
          mma_16_bit<bf16>(out_[i][j], a[i][0], a[i][1], a[i][2], a[i][3], values[0], values[1]);
          mma_16_bit<bf16>(out_[i][j + 1], a[i][0], a[i][1], a[i][2], a[i][3], values[2], values[3]);
        }
      }
    }
  }

  std::byte* shared_;
  float out_[L::kTiles][8][4] = {};
  float maximum_[2] = {-INFINITY, -INFINITY};  // of own_head(0) and own_head(1)
  float sum_[2] = {};                          // over the lane's own keys
};

template <KvFormat kFormat, int kHeads>
__global__ void __launch_bounds__(kThreads, 1) mla_sparse_kernel(const __grid_constant__ SparseArgs args) {
  using L = Layout<kFormat, kHeads>;
  extern __shared__ __align__(1024) std::byte shared[];
  pdl_wait();
  const SparseGeometry& g = args.geometry;
  const int num_selected = count_selected(args);
  const int num_splits = sparse_splits(num_selected, g);
  const int num_items = num_selected * g.num_tiles * num_splits;
  const uint32_t records = shared_address(shared + L::kRecords);
  const uint32_t raw = shared_address(shared + L::kRaw);
  const int own_record = static_cast<int>(threadIdx.x) / 4;
  SelectedRows rows;
  for (int item = static_cast<int>(blockIdx.x); item < num_items; item += static_cast<int>(gridDim.x)) {
    const auto [selected, split, tile] = sparse_item(item, num_splits, g.num_tiles);
    const int row = rows.find(args, selected);
    const int count = min(args.counts[row], g.topk);
    const int chunks = (count + kSparseChunk - 1) / kSparseChunk;
    const int first = chunks * split / num_splits;
    const int last = chunks * (split + 1) / num_splits;
    const auto slot_of = [&](int chunk) {
      return chunk < last ? slot_at(args, row, chunk * kSparseChunk + own_record, count) : -1;
    };
    load_queries<kHeads>(args, row, tile * kHeads, shared_address(shared + L::kQueries));
    if (first < last) gather_record<kFormat>(args, slot_of(first), L::kFp8 ? raw : records);
    int32_t next_slot = slot_of(first + 1);
    Item<kFormat, kHeads> work(shared);
    for (int chunk = first; chunk < last; ++chunk) {
      copy_async_wait_all();
      __syncthreads();
      uint32_t here = records;
      uint32_t next = raw;
      if constexpr (L::kFp8) {
        widen_records(shared + L::kRaw, shared + L::kRecords, reinterpret_cast<float*>(shared + L::kScales));
        __syncthreads();
      } else {
        const int odd = (chunk - first) % 2;
        here += odd * L::kTileBytes;
        next = records + (1 - odd) * L::kTileBytes;
      }
      if (chunk + 1 < last) {
        gather_record<kFormat>(args, next_slot, next);
        next_slot = slot_of(chunk + 2);
      }
      work.add_chunk(here, count - chunk * kSparseChunk, args.scale_log2);
    }
    copy_async_wait_all();  // an item without chunks has not waited for its queries yet
    const int64_t partial_row =
        (int64_t{selected} * num_splits + split) * args.num_heads + int64_t{tile} * kHeads;
    work.finish(args, row, tile * kHeads, num_splits == 1, partial_row);
  }
  pdl_launch_dependents();
}

template <KvFormat kFormat, int kHeads>
void launch(const SparseArgs& args, const Launch& launch) {
  launch_kernel<mla_sparse_kernel<kFormat, kHeads>>(launch,
                                                    dim3(static_cast<unsigned>(args.geometry.num_blocks)),
                                                    dim3(kThreads), Layout<kFormat, kHeads>::kBytes, args);
}

}  // namespace sparse

template <KvFormat kFormat>
void mla_decode_sparse(const SparseArgs& args, const Launch& launch) {
  switch (args.geometry.tile_heads) {
    case 16:
      return sparse::launch<kFormat, 16>(args, launch);
    case 32:
      return sparse::launch<kFormat, 32>(args, launch);
    default:
      return sparse::launch<kFormat, 64>(args, launch);
  }
}

}  // namespace hadal::cuda
