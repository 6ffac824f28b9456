// Computes the router logits of up to eight tokens in bf16 or float16, as one partial sum for each eighth of
// k. The experts' kernel (experts/few/kernel.cuh) adds these up, so that no block here waits for another.
//
// Grid: x is the tile of 16 experts, y the split of k. A warp loads up to two runs of 64 k of W into
// registers before pdl_wait, as in gemm/thin/kernel.cuh. W is on the 16-row side of mma.sync m16n8k16, the
// tokens on its 8-wide side. The sums of the block's warps are added in shared memory, in the order of the
// warps.

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/experts/few/few_experts.h"

namespace hadal::cuda::few {
namespace {

constexpr int kRows = 16;
constexpr int kRun = 64;   // k of a run: 128 bytes
constexpr int kDepth = 2;  // runs of a warp
constexpr int kMaxWarps = 8;
static_assert(kMaxWarps * kDepth * kRun * kRouterSplits == kMaxRouterK);

template <typename T>
struct RouterArgs {
  const T* w = nullptr;
  int64_t w_stride = 0;
  const T* x = nullptr;
  int64_t x_stride = 0;
  float* parts = nullptr;
  uint4* sums = nullptr;  // [num_sums]: sums of the experts' kernel, which this kernel sets to kAbsent
  int num_sums = 0;
  int m = 0, n = 0, num_runs = 0;
};

template <typename T>
__global__ void __launch_bounds__(kMaxWarps * 32) few_router_kernel(const RouterArgs<T> args) {
  __shared__ float sums[kMaxWarps][8][kRows + 1];
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int row = lane / 4;  // the row in W's tile (and + 8), and the token
  const int part = lane % 4;
  const int n0 = static_cast<int>(blockIdx.x) * kRows;
  const int split = static_cast<int>(blockIdx.y);
  const int begin = split * args.num_runs / kRouterSplits;
  const int end = (split + 1) * args.num_runs / kRouterSplits;
  const T* low_row = args.w + min(n0 + row, args.n - 1) * args.w_stride + part * 8;
  const T* high_row = args.w + min(n0 + row + 8, args.n - 1) * args.w_stride + part * 8;
  RowPiece low[kDepth] = {};
  RowPiece high[kDepth] = {};
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int run = begin + warp + d * warps;
    if (run >= end) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      low[d].half[h] = load_stream(low_row + run * kRun + h * 32);
      high[d].half[h] = load_stream(high_row + run * kRun + h * 32);
    }
  }
  pdl_launch_dependents();
  pdl_wait();
  RowPiece x[kDepth] = {};
  const T* x_row = args.x + row * args.x_stride + part * 8;
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    const int run = begin + warp + d * warps;
    if (run >= end || row >= args.m) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) x[d].half[h] = *reinterpret_cast<const uint4*>(x_row + run * kRun + h * 32);
  }
  const int threads = static_cast<int>(gridDim.x * gridDim.y * blockDim.x);
  const int thread =
      static_cast<int>((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x);  // grid-wide index
  for (int i = thread; i < args.num_sums; i += threads)
    __stcg(args.sums + i, make_uint4(kAbsent, kAbsent, kAbsent, kAbsent));
  float acc[4] = {};
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      mma_16_bit<T>(acc, word(low[d], i), word(high[d], i), word(low[d], i + 1), word(high[d], i + 1),
                    word(x[d], i), word(x[d], i + 1));
    }
  }
  sums[warp][2 * part][row] = acc[0];
  sums[warp][2 * part + 1][row] = acc[1];
  sums[warp][2 * part][row + 8] = acc[2];
  sums[warp][2 * part + 1][row + 8] = acc[3];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < args.m * kRows; i += static_cast<int>(blockDim.x)) {
    const int token = i / kRows;
    const int n = n0 + i % kRows;
    if (n >= args.n) continue;
    float sum = sums[0][token][i % kRows];
    for (int other = 1; other < warps; ++other) sum += sums[other][token][i % kRows];
    args.parts[(int64_t{split} * args.m + token) * args.n + n] = sum;
  }
}

// A multiprocessor changes how its memory is divided into shared memory and cache only while no block runs on
// it. So this kernel requests the division that the experts' kernel needs. Blocks of the experts' kernel can
// then start while blocks of this kernel still run.
template <typename T>
void prefer_shared_memory() {
  static OncePerDevice once;
  once([] {
    HADAL_CUDA_CHECK(cudaFuncSetAttribute(few_router_kernel<T>,
                                          cudaFuncAttributePreferredSharedMemoryCarveout,
                                          cudaSharedmemCarveoutMaxShared));
  });
}

template <typename T>
void router_of(const FewExpertsParams& p, float* parts, float* sums, size_t num_sums, const Launch& launch) {
  RouterArgs<T> args;
  args.w = static_cast<const T*>(p.gate.data);
  args.w_stride = p.gate.row_stride;
  args.x = static_cast<const T*>(p.x);
  args.x_stride = p.x_stride;
  args.parts = parts;
  args.sums = reinterpret_cast<uint4*>(sums);
  args.num_sums = static_cast<int>(num_sums / 4);
  args.m = static_cast<int>(p.route.m);
  args.n = static_cast<int>(p.gate.n);
  args.num_runs = static_cast<int>(p.gate.k / kRun);
  const int runs = (args.num_runs + kRouterSplits - 1) / kRouterSplits;
  const dim3 grid(static_cast<unsigned>((args.n + kRows - 1) / kRows), kRouterSplits);
  prefer_shared_memory<T>();
  launch_kernel<few_router_kernel<T>>(
      launch, grid, dim3(static_cast<unsigned>((runs + kDepth - 1) / kDepth * 32)), 0, args);
}

}  // namespace

void router(const FewExpertsParams& p, float* parts, float* sums, size_t num_sums, const Launch& launch) {
  if (p.gate.type == WeightType::kF16) return router_of<f16>(p, parts, sums, num_sums, launch);
  router_of<bf16>(p, parts, sums, num_sums, launch);
}

}  // namespace hadal::cuda::few
