// Counts and finds the selected rows, which attend to a selection. Only the device has their number.
#pragma once

#include "kernels/cuda/mla/decode/sparse/sparse.h"

namespace hadal::cuda {

__device__ __forceinline__ bool is_selected(const SparseArgs& args, int row) {
  return row < args.num_rows && selects_keys(args.kv_len[row], args.geometry.topk);
}

// Returns the number of selected rows; called by the whole block.
__device__ __forceinline__ int count_selected(const SparseArgs& args) {
  int count = 0;
  for (int begin = 0; begin < args.num_rows; begin += static_cast<int>(blockDim.x))
    count += __syncthreads_count(is_selected(args, begin + static_cast<int>(threadIdx.x)));
  return count;
}

// Finds selected rows by their number among the selected rows. All functions are called by whole warps.
class SelectedRows {
 public:
  // Returns the selected row with number `wanted`. It must exist, and `wanted` must not decrease from call to
  // call.
  __device__ __forceinline__ int find(const SparseArgs& args, int wanted) {
    while (true) {
      uint32_t mask =
          __ballot_sync(0xffffffffU, is_selected(args, begin_ + static_cast<int>(threadIdx.x) % 32));
      const int here = __popc(mask);
      if (before_ + here > wanted) {
        for (int skip = wanted - before_; skip > 0; --skip) mask &= mask - 1;
        return begin_ + __ffs(static_cast<int>(mask)) - 1;
      }
      before_ += here;
      begin_ += 32;
    }
  }

 private:
  int begin_ = 0;   // rows below begin_ are counted
  int before_ = 0;  // selected rows below begin_
};

}  // namespace hadal::cuda
