// The merge kernel: joins the partial results of split sequences where no decode kernel does it itself
// (DecodeGeometry::merge_inside).
//
// Grid: blocks walk the rows of all split sequences (how many there are, the plan knows). A thread owns four
// columns of 512; kGroups groups of 128 threads share the splits, and group 0 adds up what the groups have.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/mla/decode_merge.cuh"

namespace hadal::cuda {
namespace {

template <typename Out, int kGroups, int kInFlight>
__global__ void __launch_bounds__(kGroups * 128) mla_merge_kernel(const __grid_constant__ DecodeArgs args) {
  __shared__ float4 shares[kGroups][128];
  pdl_wait();
  pdl_launch_dependents();
  const int t = static_cast<int>(threadIdx.x) % 128;
  const int group = static_cast<int>(threadIdx.x) / 128;
  // The first item's facts are read beside the number of items: one round trip less. (The array has num_seqs
  // entries.)
  int item = static_cast<int>(blockIdx.x);
  DecodeMerge merge = args.plan.merges[min(item / args.rows, args.num_seqs - 1)];
  const int num_items = *args.plan.num_merges * args.rows;
  for (; item < num_items; item += static_cast<int>(gridDim.x)) {
    if (item != static_cast<int>(blockIdx.x)) merge = args.plan.merges[item / args.rows];
    const int row = item % args.rows;
    MergedColumns merged =
        merge_splits<kGroups, kInFlight>(args, {merge.num_splits, merge.first_slot, 0, 0}, row, t, group);
    if constexpr (kGroups > 1) {
      shares[group][t] = merged.values;
      __syncthreads();
      if (group == 0) {
        float4& sum = merged.values;
        for (int other = 1; other < kGroups; ++other) {
          const float4 share = shares[other][t];
          sum = {sum.x + share.x, sum.y + share.y, sum.z + share.z, sum.w + share.w};
        }
      }
      __syncthreads();  // shares are free again
    }
    if (group == 0) store_merged<Out>(args, merge.seq, row, t, merged);
  }
}

template <typename Out>
void launch_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  // Few rows want more threads each, many rows want many blocks. With fixed splits the choice, which decides
  // the order of additions, must not depend on the batch.
  const int most_items = args.num_seqs * args.rows;
  const auto blocks = [&](int each) {
    return dim3(static_cast<unsigned>(std::min(launch.num_sms * each, most_items)));
  };
  if (geometry.fixed_splits || most_items > launch.num_sms * 2) {
    if (geometry.num_parts <
        4 * args.num_seqs) {  // few splits a sequence: fewer registers, more blocks at once
      launch_kernel<mla_merge_kernel<Out, 1, 4>>(launch, blocks(16), dim3(128), 0, args);
    } else {
      launch_kernel<mla_merge_kernel<Out, 1, 8>>(launch, blocks(12), dim3(128), 0, args);
    }
  } else {
    launch_kernel<mla_merge_kernel<Out, 4, 8>>(launch, blocks(2), dim3(512), 0, args);
  }
}

}  // namespace

void mla_merge(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  if (args.out_f16) {
    launch_merge<f16>(args, geometry, launch);
  } else {
    launch_merge<bf16>(args, geometry, launch);
  }
}

}  // namespace hadal::cuda
