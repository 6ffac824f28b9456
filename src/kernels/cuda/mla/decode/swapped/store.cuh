// Stores the joined results of the swapped decode kernel: in `out`, with log-sum-exps in `lse`, or as float32
// rows in a slot for the merge kernel.
#pragma once

#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/mla/decode/swapped/send.cuh"

namespace hadal::cuda::swapped {

// Returns the address of a row of the sequence: in the piece's slot, in float32, if the piece is a split,
// otherwise in `out`.
template <typename Out>
__device__ __forceinline__ void* result_at(const DecodeArgs& args, const DecodePiece& piece, int row,
                                           int dim) {
  const bool in_slot = piece.slot >= 0;
  const int64_t at =
      ((in_slot ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row) * kKvLatentDim + dim;
  return in_slot ? static_cast<void*>(args.partial_out + at)
                 : static_cast<void*>(static_cast<Out*>(args.out) + at);
}

// Stores a thread's values of the m-tiles from `m` on and of the rows from 8 · j on. Rows that do not exist
// are skipped.
template <typename Format>
class ResultStore {
 public:
  __device__ __forceinline__ ResultStore(const DecodeArgs& args, const DecodePiece& piece, int first_row,
                                         int m, int j)
      : in_slot_(piece.slot >= 0) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool by_pairs = in_slot_ || Format::kPairedDims;  // pairs of rows, else of dims
    const int row = first_row + 8 * j + (by_pairs ? 2 * (lane % 4) : lane / 4);
    int dim = 64 * m + 16 * warp;
    if (Format::kPairedDims) {
      dim += 2 * (lane / 4);
    } else {
      dim += in_slot_ ? lane / 4 : 2 * (lane % 4);
    }
    rows_left_ = args.rows - row;
    target_ = result_at<typename Format::Out>(args, piece, row, dim);
  }
  // Stores the normalised registers 4·j … 4·j + 3 of m-tile m, where j and m count from the constructor's. It
  // is called by whole warps.
  __device__ __forceinline__ void store(int m, int j, const float4& v) const {
    const int offset = 8 * j * kKvLatentDim + 64 * m;
    const bool first = rows_left_ > 8 * j;
    const bool second = rows_left_ > 8 * j + 1;
    if (in_slot_) {
      float* at = static_cast<float*>(target_) + offset;
      if constexpr (Format::kPairedDims) {
        if (first) *reinterpret_cast<float2*>(at) = {v.x, v.z};
        if (second) *reinterpret_cast<float2*>(at + kKvLatentDim) = {v.y, v.w};
      } else {
        if (first) {
          at[0] = v.x;
          at[8] = v.z;
        }
        if (second) {
          at[kKvLatentDim] = v.y;
          at[kKvLatentDim + 8] = v.w;
        }
      }
      return;
    }
    using Out = typename Format::Out;
    auto* at = reinterpret_cast<uint32_t*>(static_cast<Out*>(target_) + offset);
    if constexpr (Format::kPairedDims) {
      if (first) at[0] = pack_two<Out>(v.x, v.z);
      if (second) at[kKvLatentDim / 2] = pack_two<Out>(v.y, v.w);
    } else {
      const uint32_t low = transpose_matrix(pack_two<Out>(v.x, v.y));   // dims 0…7 of the warp's sixteen
      const uint32_t high = transpose_matrix(pack_two<Out>(v.z, v.w));  // 8…15
      if (first) {
        at[0] = low;
        at[4] = high;
      }
    }
  }

 private:
  bool in_slot_;
  int rows_left_;
  void* target_;
};

template <typename Format>
__device__ __forceinline__ void store_lse(const DecodeArgs& args, const DecodePiece& piece, int row,
                                          const BlockFacts& facts) {
  if (row >= args.rows) return;
  const float lse = facts.sum > 0.0F ? facts.maximum + log2f(facts.sum) - Format::kWeightLog2 : -INFINITY;
  if (piece.slot >= 0) {
    args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
  } else if (args.lse != nullptr) {
    args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
  }
}

// Stores a thread's values of one dim and two rows.
template <typename Format>
class PairStore {
 public:
  __device__ __forceinline__ PairStore(const DecodeArgs& args, const DecodePiece& piece, int first_row, int h)
      : in_slot_(piece.slot >= 0), turns_(!in_slot_ && !Format::kPairedDims) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = first_row + (turns_ ? lane / 4 : 2 * (lane % 4));
    int dim = 16 * warp;
    if (Format::kPairedDims) {
      dim += 2 * (lane / 4) + h;
    } else {
      dim += 8 * h + (turns_ ? 2 * (lane % 4) : lane / 4);
    }
    rows_left_ = args.rows - row;
    target_ = result_at<typename Format::Out>(args, piece, row, dim);
  }
  // Stores rows 8 · j + 2 · (lane % 4) and the next one. It is called by whole warps.
  __device__ __forceinline__ void store(int m, int j, const float2& v) const {
    const int offset = 8 * j * kKvLatentDim + 64 * m;
    const bool first = rows_left_ > 8 * j;
    const bool second = rows_left_ > 8 * j + 1;
    using Out = typename Format::Out;
    if (in_slot_) {
      float* at = static_cast<float*>(target_) + offset;
      if (first) at[0] = v.x;
      if (second) at[kKvLatentDim] = v.y;
      return;
    }
    const uint32_t packed = pack_two<Out>(v.x, v.y);
    if constexpr (Format::kPairedDims) {
      auto* at = reinterpret_cast<uint16_t*>(static_cast<Out*>(target_) + offset);
      if (first) at[0] = static_cast<uint16_t>(packed);
      if (second) at[kKvLatentDim] = static_cast<uint16_t>(packed >> 16);
    } else {
      const uint32_t turned = transpose_matrix(packed);
      if (first) *reinterpret_cast<uint32_t*>(static_cast<Out*>(target_) + offset) = turned;
    }
  }

 private:
  bool in_slot_, turns_;
  int rows_left_;
  void* target_;
};

}  // namespace hadal::cuda::swapped
