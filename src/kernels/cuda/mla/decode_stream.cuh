// MLA decode for few query rows (16 or 32 a tile), bound by memory: mma.sync over records as they lie in the
// cache.
//
// Grid: num_parts × num_tiles persistent blocks of 12 warps, the tiles of a part next to each other; a block
// walks the plan's pieces of its part. Warp 8 loads, half a page a slot of the ring: bf16 as nine swizzled
// tiles of a tensor map (whole halves: the computing warps zero what lies beyond the length), FP8 as one
// plain copy (records up to the length; the loading warp zeroes the rest). Warps 0…7 compute, a page at a
// time:
//   scores   warp (half, part) = (w / 4, w % 4): the half page's 32 keys × a quarter of k (128 latents and 16
//            of rope); the quarters meet in shared memory
//   softmax  16 threads a row: mask, running maximum, weights to shared memory
//   output   warp w: latents 64·w … + 63 of all rows, accumulators in registers
// With scales (e4m3), a weight is exp(score) · scale: the running maximum is taken over score + log2(largest
// scale of the record), so weights stay in [0, 1] and fit float16, and the row sum divides the scale out
// again. Codes are exact in float16, so nothing is rounded but the weights.
//
// barrier        arrivals            guards                         phase
// full[slot]     1 (FP8: 32) + bytes the slot's records             each use of the slot
// empty[slot]    8 (FP8: 256)        the slot is free               each use of the slot
// named 1        256                 partial scores written; weights of the page before are read
// named 2        256                 weights written; partial scores read
//
// Registers (32 rows): query 72, output 64, scores 32 or operands; 232 of a compute thread, 40 of the other
// warpgroup.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode_merge.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"
#include "kernels/cuda/mla/decode_stream_formats.cuh"

namespace hadal::cuda::stream {

constexpr int kComputeThreads = 256;
constexpr int kThreads = kComputeThreads + 128;  // a warpgroup more, for its registers; one warp of it copies
constexpr int kSlotKeys = kPageSize / 2;
constexpr int kScoreStride = kPageSize + 8;  // floats: a warp's stores of C fragments touch every bank once
constexpr int kWeightStride = (kPageSize + 8) * 2;  // bytes: ldmatrix rows in different banks
constexpr int kSharedLimit = 227 * 1024;

// Of a page's records: the largest of the four scales (its reciprocal and logarithm) and each one's share of
// it.
struct KeyScales {
  float share[4][kPageSize];
  float inverse[kPageSize];
  float log2[kPageSize];
};

template <typename Format, int kRowTiles>
struct Shared {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kSlotBytes = Format::kHalfPageBytes;
  static constexpr int kScoreBytes = 4 * kRows * kScoreStride * 4;
  static constexpr int kNumWeights = Format::kScaled ? 4 : 1;  // sets of weights, one for each scale
  static constexpr int kWeightBytes = kRows * kWeightStride;
  static constexpr int kScaleBytes = Format::kScaled ? static_cast<int>(sizeof(KeyScales)) : 0;
  static constexpr int kFixedBytes =
      kScoreBytes + kNumWeights * kWeightBytes + kScaleBytes + 2 * kRows * 4 + 256;
  static constexpr int kSlots =
      (kSharedLimit - kFixedBytes) / kSlotBytes < 8 ? (kSharedLimit - kFixedBytes) / kSlotBytes : 8;
  static constexpr int kBytes = kFixedBytes + kSlots * kSlotBytes;
  static_assert(kSlots >= 4, "two pages in flight");
};

template <typename Format, int kRowTiles>
__device__ __forceinline__ void produce(const DecodeArgs& args, const CUtensorMap* pool, int part,
                                        std::byte* slots, Mbarrier* full, Mbarrier* empty) {
  using Plan = Shared<Format, kRowTiles>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Plan::kSlots> ring;
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    int32_t ids = 0;
    for (int page = piece.begin_page; page < piece.end_page; ++page) {
      const int ahead = (page - piece.begin_page) % 32;
      if (ahead == 0) ids = page + lane < piece.end_page ? table[page + lane] : 0;
      const int32_t id = __shfl_sync(0xffffffffU, ids, ahead);
      for (int half = 0; half < 2; ++half) {
        const int valid = min(max(piece.num_keys - page * kPageSize - half * kSlotKeys, 0), kSlotKeys);
        std::byte* slot = slots + ring.slot * Plan::kSlotBytes;
        Mbarrier* barrier = &full[ring.slot];
        mbarrier_wait(&empty[ring.slot], ring.producer_parity());
        if constexpr (Format::kTiled) {
          if (lane == 0) mbarrier_arrive_expect_tx(barrier, valid > 0 ? Plan::kSlotBytes : 0);
          __syncwarp();
          if (lane < kKvRowDim / 64 && valid > 0) {
            tma_load_2d(slot + lane * Format::kTileBytes, pool, barrier, lane * 64,
                        id * kPageSize + half * kSlotKeys, L2Policy::kEvictFirst);
          }
        } else {
          const std::byte* source = args.pool + id * args.page_stride + half * kSlotKeys * Format::kRowBytes;
          std::byte* target = slot + lane * Format::kRowStride;
          if (lane >= valid) {
            for (int i = 0; i < Format::kRowBytes; i += 16) {
              *reinterpret_cast<uint4*>(target + i) = make_uint4(0, 0, 0, 0);
            }
            fence_proxy_async_shared();
          }
          // Every lane arrives: it may have written.
          if (lane == 0) {
            mbarrier_arrive_expect_tx(barrier, static_cast<uint32_t>(valid) * Format::kRowBytes);
          } else {
            mbarrier_arrive(barrier);
          }
          __syncwarp();
          // Four copies are on their way sooner than one.
          const int first = lane * (kSlotKeys / 4);
          const int count = min(valid - first, kSlotKeys / 4);
          if (lane < 4 && count > 0) {
            bulk_load(slot + first * Format::kRowBytes, source + first * Format::kRowBytes,
                      count * Format::kRowBytes, barrier);
          }
        }
        ring.advance();
      }
    }
  });
}

// Where things lie in shared memory.
struct Buffers {
  std::byte* slots;       // [kSlots][kSlotKeys] records
  float* scores;          // [4][kRows][kScoreStride]
  std::byte* weights;     // [kNumWeights][kRows] rows of kWeightStride bytes
  KeyScales* key_scales;  // with scales
  float* rescale;         // [kRows]
  float* inverse;         // [kRows]
  Mbarrier* full;         // [kSlots]
  Mbarrier* empty;        // [kSlots]
};

template <typename Format, int kRowTiles>
__device__ __forceinline__ void compute(const DecodeArgs& args, int part, int first_row,
                                        const Buffers& buffers) {
  using Plan = Shared<Format, kRowTiles>;
  constexpr int kRows = Plan::kRows;
  const auto [slots, scores, weights, key_scales, rescale, inverse, full, empty] = buffers;
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / 32;
  const int lane = tid % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int half = warp / 4;             // of the page, for scores
  const int quarter = warp % 4;          // of k, for scores
  const int softmax_row = tid / 16;      // and the one 16 further on
  const int softmax_key = tid % 16 * 4;  // of the page; four keys
  const std::byte* own_weights = weights + (Format::kScaled ? warp / 2 : 0) * Plan::kWeightBytes;
  RingPosition<Plan::kSlots> ring;

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    // The query's fragments, for the whole piece.
    uint32_t query[kRowTiles][9][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int row = first_row + m * 16 + g;
      const bf16* at = static_cast<const bf16*>(args.q) + (int64_t{piece.seq} * args.rows + row) * kKvRowDim;
      const bf16* row_g = row < args.rows ? at : nullptr;
      const bf16* row_g8 = row + 8 < args.rows ? at + 8 * kKvRowDim : nullptr;
#pragma unroll
      for (int step = 0; step < 9; ++step)
        Format::load_query(row_g, row_g8, quarter, step, t, query[m][step]);
    }
    float output[kRowTiles][8][4] = {};
    float maximum[kRowTiles], sum[kRowTiles];
    int visible[kRowTiles];  // keys that the softmax row sees
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      maximum[m] = -INFINITY;
      sum[m] = 0.0F;
      const int own_query = min((first_row + m * 16 + softmax_row) / args.num_heads, args.q_len - 1);
      visible[m] = piece.num_keys - args.q_len + 1 + own_query;
    }

    for (int page = piece.begin_page; page < piece.end_page; ++page) {
      const RingPosition<Plan::kSlots> first = ring;
      ring.advance();
      const RingPosition<Plan::kSlots> second = ring;
      ring.advance();
      const uint32_t slot_base = shared_address(slots);
      const uint32_t halves[2] = {slot_base + first.slot * Plan::kSlotBytes,
                                  slot_base + second.slot * Plan::kSlotBytes};

      // Scores.
      mbarrier_wait(&full[half == 0 ? first.slot : second.slot],
                    half == 0 ? first.parity() : second.parity());
      float score[kRowTiles][4][4] = {};
      const uint32_t own_keys = half == 0 ? halves[0] : halves[1];
      Format::for_each_key_tile(own_keys, quarter, lane, [&](int step, int tile, const uint32_t(&b)[2]) {
        if (Format::kScaled && step == 8) {
          const uint32_t record =
              own_keys + (tile * 8 + 2 * t) * Format::kRowStride + kKvFp8ScaleOffset + quarter * 4;
          const float even = __uint_as_float(load_shared(record));
          const float odd = __uint_as_float(load_shared(record + Format::kRowStride));
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            score[m][tile][0] *= even;
            score[m][tile][1] *= odd;
            score[m][tile][2] *= even;
            score[m][tile][3] *= odd;
          }
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) Format::score(step, score[m][tile], query[m][step], b);
      });
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          float* at =
              scores + ((quarter * kRows) + m * 16 + g) * kScoreStride + half * kSlotKeys + tile * 8 + 2 * t;
          *reinterpret_cast<float2*>(at) = {score[m][tile][0], score[m][tile][1]};
          *reinterpret_cast<float2*>(at + 8 * kScoreStride) = {score[m][tile][2], score[m][tile][3]};
        }
      }
      // Both halves, for the scales and the values.
      mbarrier_wait(&full[first.slot], first.parity());
      mbarrier_wait(&full[second.slot], second.parity());
      if (Format::kScaled && lane < 8) {  // eight keys a warp
        const int key = warp * 8 + lane;
        const uint4 bits = load_shared_16((key < kSlotKeys ? halves[0] : halves[1]) +
                                          key % kSlotKeys * Format::kRowStride + kKvFp8ScaleOffset);
        const float4 scale = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                              __uint_as_float(bits.w)};
        const float largest = fmaxf(fmaxf(scale.x, scale.y), fmaxf(scale.z, scale.w));
        const float inverse_largest = largest > 0.0F ? 1.0F / largest : 0.0F;  // a zeroed record has no scale
        key_scales->share[0][key] = scale.x * inverse_largest;
        key_scales->share[1][key] = scale.y * inverse_largest;
        key_scales->share[2][key] = scale.z * inverse_largest;
        key_scales->share[3][key] = scale.w * inverse_largest;
        key_scales->inverse[key] = inverse_largest;
        key_scales->log2[key] = log2f(largest);
      }
      named_barrier_sync(1, kComputeThreads);

      // Softmax.
      float4 inverse_scale, scale_log2;  // of the thread's four keys
      if constexpr (Format::kScaled) {
        inverse_scale = *reinterpret_cast<const float4*>(&key_scales->inverse[softmax_key]);
        scale_log2 = *reinterpret_cast<const float4*>(&key_scales->log2[softmax_key]);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const int row = m * 16 + softmax_row;
        const float* at = scores + row * kScoreStride + softmax_key;
        float4 s = *reinterpret_cast<const float4*>(at);
#pragma unroll
        for (int other = 1; other < 4; ++other) {
          const float4 more = *reinterpret_cast<const float4*>(at + other * kRows * kScoreStride);
          s = {s.x + more.x, s.y + more.y, s.z + more.z, s.w + more.w};
        }
        float value[4] = {s.x * args.scale_log2, s.y * args.scale_log2, s.z * args.scale_log2,
                          s.w * args.scale_log2};
        if constexpr (Format::kScaled) {
          value[0] += scale_log2.x;
          value[1] += scale_log2.y;
          value[2] += scale_log2.z;
          value[3] += scale_log2.w;
        }
        float top = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool seen =
              page * kPageSize + (softmax_key & ~7) + Format::key_of((softmax_key & 7) + i) < visible[m];
          value[i] = seen ? value[i] : -INFINITY;
          top = fmaxf(top, value[i]);
        }
#pragma unroll
        for (int distance = 8; distance > 0; distance /= 2) {
          top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, distance));
        }
        const float new_maximum = fmaxf(maximum[m], top);
        const float base = new_maximum == -INFINITY ? 0.0F : new_maximum;
        const float factor = exp2_fast(maximum[m] - base);
        maximum[m] = new_maximum;
        sum[m] *= factor;
        if (tid % 16 == 0) rescale[row] = factor;
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = exp2_fast(value[i] - base);
        std::byte* target = weights + row * kWeightStride + softmax_key * 2;
        if constexpr (Format::kScaled) {
          sum[m] += value[0] * inverse_scale.x + value[1] * inverse_scale.y + value[2] * inverse_scale.z +
                    value[3] * inverse_scale.w;
#pragma unroll
          for (int set = 0; set < 4; ++set) {
            const float4 share = *reinterpret_cast<const float4*>(&key_scales->share[set][softmax_key]);
            *reinterpret_cast<uint2*>(target + set * Plan::kWeightBytes) =
                make_uint2(Format::pack_weights(value[0] * share.x, value[1] * share.y),
                           Format::pack_weights(value[2] * share.z, value[3] * share.w));
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[m] += value[i];
          *reinterpret_cast<uint2*>(target) =
              make_uint2(Format::pack_weights(value[0], value[1]), Format::pack_weights(value[2], value[3]));
        }
      }
      named_barrier_sync(2, kComputeThreads);

      // Output. A tile holds whatever the page does: each warp zeroes its columns of the records beyond the
      // length.
      if constexpr (Format::kTiled) {
        const int valid = piece.num_keys - page * kPageSize;
        if (valid < kPageSize) {
          for (int i = lane; i < (kPageSize - valid) * 8; i += 32) {
            const int key = valid + i / 8;
            *reinterpret_cast<uint4*>(slots + (key < kSlotKeys ? first : second).slot * Plan::kSlotBytes +
                                      warp * Format::kTileBytes + key % kSlotKeys * 128 + i % 8 * 16) =
                make_uint4(0, 0, 0, 0);
          }
          fence_proxy_async_shared();
          __syncwarp();
        }
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        const float low = rescale[m * 16 + g];
        const float high = rescale[m * 16 + g + 8];
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
          output[m][tile][0] *= low;
          output[m][tile][1] *= low;
          output[m][tile][2] *= high;
          output[m][tile][3] *= high;
        }
      }
      const uint32_t weight_base =
          shared_address(own_weights) + (((lane >> 3) & 1) * 8 + lane % 8) * kWeightStride + (lane >> 4) * 16;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t b[8][2];
        Format::load_values(halves[step / 2] + step % 2 * 16 * Format::kRowStride, warp * 64, lane, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          uint32_t a[4];
          ldmatrix_x4(weight_base + m * 16 * kWeightStride + step * 32, a);
#pragma unroll
          for (int tile = 0; tile < 8; ++tile) Format::accumulate(output[m][tile], a, b[tile]);
        }
      }
      __syncwarp();
      if (!Format::kTiled || lane == 0) {
        mbarrier_arrive(&empty[first.slot]);
        mbarrier_arrive(&empty[second.slot]);
      }
    }

    // The piece's end: row sums over the 16 threads of a row, then every warp writes its columns.
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2)
        sum[m] += __shfl_xor_sync(0xffffffffU, sum[m], distance);
      const int row = first_row + m * 16 + softmax_row;
      if (tid % 16 == 0) {
        inverse[m * 16 + softmax_row] = sum[m] > 0.0F ? 1.0F / sum[m] : 0.0F;
        const float lse = sum[m] > 0.0F ? maximum[m] + log2f(sum[m]) : -INFINITY;
        if (row < args.rows) {
          if (piece.slot >= 0) {
            args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
          } else if (args.lse != nullptr) {
            args.lse[int64_t{piece.seq} * args.rows + row] = lse * 0.6931471805599453F;
          }
        }
      }
    }
    named_barrier_sync(1, kComputeThreads);
    float factors[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      factors[m][0] = inverse[m * 16 + g];
      factors[m][1] = inverse[m * 16 + g + 8];
    }
    named_barrier_sync(2, kComputeThreads);  // `inverse` may be written again
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first_row + m * 16 + h * 8 + g;
        if (row >= args.rows) continue;
        const float factor = factors[m][h];
        const int64_t at = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row;
        float* partial = args.partial_out + at * kKvLatentDim + warp * 64;
        bf16* out = static_cast<bf16*>(args.out) + at * kKvLatentDim + warp * 64;
        if constexpr (Format::kColumnsInPairs) {
#pragma unroll
          for (int tile = 0; tile < 8; ++tile) {
            const float low = output[m][tile][2 * h] * factor;
            const float high = output[m][tile][2 * h + 1] * factor;
            if (piece.slot >= 0) {
              *reinterpret_cast<float2*>(partial + tile * 8 + 2 * t) = {low, high};
            } else {
              *reinterpret_cast<uint32_t*>(out + tile * 8 + 2 * t) = pack_bf16(low, high);
            }
          }
        } else {  // sixteen neighbouring columns: column tiles 0…7 of accumulator 0, then of accumulator 1
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float v[8];
#pragma unroll
            for (int tile = 0; tile < 8; ++tile) v[tile] = output[m][tile][2 * h + c] * factor;
            if (piece.slot >= 0) {
              auto* target = reinterpret_cast<float4*>(partial + t * 16 + c * 8);
              target[0] = {v[0], v[1], v[2], v[3]};
              target[1] = {v[4], v[5], v[6], v[7]};
            } else {
              *reinterpret_cast<uint4*>(out + t * 16 + c * 8) = make_uint4(
                  pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
            }
          }
        }
      }
    }
    if (piece.slot >= 0 && args.merge_inside) {
      named_barrier_sync(1, kComputeThreads);
      if (tid == 0) arrive_split(args, piece);
    }
  });

  if (!args.merge_inside) return;
  // Split sequences: each block waits for the other splits, all of which are being worked on, and merges its
  // share of the rows.
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.slot < 0) return;
    if (tid == 0) await_splits(args, piece);
    named_barrier_sync(1, kComputeThreads);
    // Quarters of rows are dealt out to the blocks. The fewer a block has, the more warps share the splits of
    // one.
    const int num_splits = piece.split.num_splits;
    const int groups = num_splits >= 64 ? 8 : num_splits >= 32 ? 4 : num_splits >= 16 ? 2 : 1;
    const int own_split = piece.slot - piece.split.first_slot;
    const int num_quarters = args.rows * 4;
    auto* shares = reinterpret_cast<float4*>(scores);  // [8 warps][32]
    for (int first = own_split; first < num_quarters; first += 8 / groups * num_splits) {
      const int quarter_row = first + warp / groups * num_splits;
      const int row = quarter_row / 4;
      const int quad = quarter_row % 4 * 32 + lane;
      const bool valid = quarter_row < num_quarters;
      MergedColumns merged{};
      if (valid) {
        merged = groups == 8   ? merge_splits<8>(args, piece.split, row, quad, warp % 8)
                 : groups == 4 ? merge_splits<4>(args, piece.split, row, quad, warp % 4)
                 : groups == 2 ? merge_splits<2>(args, piece.split, row, quad, warp % 2)
                               : merge_splits<1>(args, piece.split, row, quad, 0);
      }
      if (groups > 1) {
        shares[warp * 32 + lane] = merged.values;
        named_barrier_sync(2, kComputeThreads);
        if (warp % groups == 0) {
          for (int other = 1; other < groups; ++other) {
            const float4 share = shares[(warp + other) * 32 + lane];
            merged.values = {merged.values.x + share.x, merged.values.y + share.y, merged.values.z + share.z,
                             merged.values.w + share.w};
          }
        }
        named_barrier_sync(1, kComputeThreads);  // shares are free again
      }
      if (valid && warp % groups == 0) store_merged(args, piece.seq, row, quad, merged);
    }
    named_barrier_sync(2, kComputeThreads);
    if (tid == 0) leave_splits(args, piece);
  });
}

template <typename Format, int kRowTiles>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_stream_kernel(const __grid_constant__ DecodeArgs args,
                             const __grid_constant__ CUtensorMap pool) {
  using Plan = Shared<Format, kRowTiles>;
  constexpr int kRows = Plan::kRows;
  extern __shared__ __align__(1024) std::byte shared[];
  Buffers buffers;
  buffers.slots = shared;
  std::byte* scores = shared + Plan::kSlots * Plan::kSlotBytes;
  buffers.scores = reinterpret_cast<float*>(scores);
  buffers.weights = scores + Plan::kScoreBytes;
  buffers.key_scales = reinterpret_cast<KeyScales*>(buffers.weights + Plan::kNumWeights * Plan::kWeightBytes);
  buffers.rescale =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(buffers.key_scales) + Plan::kScaleBytes);
  buffers.inverse = buffers.rescale + kRows;
  buffers.full = reinterpret_cast<Mbarrier*>(buffers.inverse + kRows);
  buffers.empty = buffers.full + Plan::kSlots;
  const int part = static_cast<int>(blockIdx.x) / args.num_tiles;
  const int first_row = static_cast<int>(blockIdx.x) % args.num_tiles * kRows;

  if (threadIdx.x == 0) {
    for (int s = 0; s < Plan::kSlots; ++s) {
      mbarrier_init(&buffers.full[s], Format::kTiled ? 1 : 32);
      mbarrier_init(&buffers.empty[s], Format::kTiled ? kComputeThreads / 32 : kComputeThreads);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();  // this grid leaves no registers: the merge's blocks come as these end
  if (threadIdx.x < kComputeThreads) {
    set_max_registers_up<232>();
    compute<Format, kRowTiles>(args, part, first_row, buffers);
  } else {
    set_max_registers_down<40>();
    if (threadIdx.x < kComputeThreads + 32) {
      produce<Format, kRowTiles>(args, &pool, part, buffers.slots, buffers.full, buffers.empty);
    }
  }
}

template <typename Format>
void launch_stream(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  CUtensorMap pool{};
  if constexpr (Format::kTiled) pool = decode_pool_map(args.pool, kSlotKeys);
  if (geometry.tile_rows == 16) {
    launch_kernel<mla_decode_stream_kernel<Format, 1>>(launch,
                                                       dim3(static_cast<unsigned>(geometry.num_parts)),
                                                       dim3(kThreads), Shared<Format, 1>::kBytes, args, pool);
    return;
  }
  DecodeArgs tiled = args;  // a plan for tiles of 64 rows serves tiles of 32: twice the blocks
  tiled.num_tiles = (args.rows + 31) / 32;
  launch_kernel<mla_decode_stream_kernel<Format, 2>>(
      launch, dim3(static_cast<unsigned>(geometry.num_parts * tiled.num_tiles)), dim3(kThreads),
      Shared<Format, 2>::kBytes, tiled, pool);
}

}  // namespace hadal::cuda::stream
