// Quantises rows with one scale each, alone or after SwiGLU.
//
// Grid: there is one block per row. A thread holds kChunks chunks of eight values from load to store, so the
// row is read once; its chunks lie a whole block apart. Rows of up to 4,096, 8,192 and 32,768 columns have 1,
// 2 and 4 chunks. There is one barrier: warps leave their largest magnitudes in shared memory (128 bytes),
// and then every warp computes the maximum of all of them.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/elementwise/tokens.h"

namespace hadal::cuda {
namespace {

// Loads eight values of a row; `column` must lie within the row.
struct PlainRow {
  const bf16* x;

  __device__ __forceinline__ PlainRow(const QuantizeParams& p, int64_t row)
      : x(static_cast<const bf16*>(p.x) + row * p.x_stride) {}
  __device__ __forceinline__ Floats8 at(const QuantizeParams& /*p*/, int column) const {
    return load8(x + column);
  }
  static __host__ __device__ const QuantizedRows& out(const QuantizeParams& p) { return p.y; }
  static __device__ __forceinline__ bool is_used(const QuantizeParams& /*p*/, int64_t /*row*/) {
    return true;
  }
};
struct SiluRow {
  const bf16* x;
  bf16* y;

  __device__ __forceinline__ SiluRow(const SiluMulParams& p, int64_t row)
      : x(static_cast<const bf16*>(p.x) + row * 2 * p.n),
        y(p.y != nullptr ? static_cast<bf16*>(p.y) + row * p.n : nullptr) {}
  __device__ __forceinline__ Floats8 at(const SiluMulParams& p, int column) const {
    const Floats8 gate = load8(x + column);
    const Floats8 up = load8(x + p.n + column);
    Floats8 value;
#pragma unroll
    for (int i = 0; i < kVec; ++i) value.v[i] = silu_times(gate.v[i], up.v[i]);
    if (y != nullptr) store8(y + column, value);
    return value;
  }
  static __host__ __device__ const QuantizedRows& out(const SiluMulParams& p) {
    return p.y_quantized;
  }
  static __device__ __forceinline__ bool is_used(const SiluMulParams& p, int64_t row) {
    return p.num_used == nullptr || row < *p.num_used;
  }
};

template <typename Row, typename Params, int kChunks>
__global__ void __launch_bounds__(kChunks == 4 ? 1024 : 512) quantize_tokens_kernel(const Params p) {
  __shared__ float peaks[32];
  pdl_launch_dependents();
  pdl_wait();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int64_t row_idx = blockIdx.x;
  if (!Row::is_used(p, row_idx)) return;  // the whole block
  const Row row(p, row_idx);
  Floats8 x[kChunks];
  float peak = 0.0F;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int column = (i * threads + thread) * kVec;
    x[i] = {};
    if (column < p.n) x[i] = row.at(p, column);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) peak = fmaxf(peak, abs_max8(x[i]));
  peak = lanes_max(peak);
  const int lane = thread % 32;
  if (lane == 0) peaks[thread / 32] = peak;
  __syncthreads();
  peak = lanes_max(lane < threads / 32 ? peaks[lane] : 0.0F);
  const QuantizedRows& out = Row::out(p);
  const float scale = scale_of(out, peak);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    store8_of_token(out, row_idx, (i * threads + thread) * kVec, x[i], scale);
  }
}

template <typename Row, typename Params>
void launch_tokens(const Params& p, const Launch& launch) {
  const int64_t vectors = Row::out(p).stride / kVec;
  const auto run = [&]<int kChunks>() {
    const auto threads = static_cast<unsigned>(round_up((vectors + kChunks - 1) / kChunks, 32));
    launch_kernel<quantize_tokens_kernel<Row, Params, kChunks>>(launch, static_cast<unsigned>(p.m), threads,
                                                                0, p);
  };
  if (vectors <= 512) return run.template operator()<1>();
  if (vectors <= 1024) return run.template operator()<2>();
  run.template operator()<4>();
}

}  // namespace

void quantize_tokens(const QuantizeParams& p, const Launch& launch) {
  launch_tokens<PlainRow>(p, launch);
}
void silu_mul_tokens(const SiluMulParams& p, const Launch& launch) {
  launch_tokens<SiluRow>(p, launch);
}

}  // namespace hadal::cuda
