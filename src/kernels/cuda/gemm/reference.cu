// Implements the plain kernels of linear and of the absorbed products. Each thread computes one output
// element, with k in ascending order and float32 sums. With FP8 weights, sums of blocks of 128 are joined as
// kernels/params/linear.h says. The kernels support any shape and alignment from sm_80 on. They are the
// oracle of the device tests, and run the shapes that no tuned kernel supports.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/gemm/plain_dot.cuh"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 128;

// Grid: x is the group of 128 outputs, y the row.
__global__ void plain_linear_kernel(DenseLinearParams p) {
  pdl_wait();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= p.w.n) return;
  for (int64_t m = blockIdx.y; m < p.m; m += gridDim.y) {
    float sum = has_scales(p.w.type) ? plain_dot_w8a8(p.x_quantized, m, p.w, n)
                                     : plain_dot(p.x, m * p.x_stride, has_f16_rows(p), p.w, n, p.w.k);
    if (p.bias != nullptr) sum += p.bias[n];
    if (p.y_f32 != nullptr) {
      p.y_f32[m * p.y_stride + n] = sum;
    } else {
      store_16_bit(p.y, m * p.y_stride + n, sum, has_f16_rows(p));
    }
  }
}

// Grid: x is the head and its group of 128 outputs (4 per head), y the row.
__global__ void plain_absorb_kernel(AbsorbQueryParams p) {
  pdl_wait();
  const int head = blockIdx.x / 4;
  const int64_t i = (blockIdx.x % 4) * kThreads + threadIdx.x;
  for (int64_t m = blockIdx.y; m < p.m; m += gridDim.y) {
    const int64_t row = p.rows != nullptr ? p.rows[m] : m;
    const bool is_f16 = p.w_uk.type == WeightType::kF16;
    const int64_t q = row * p.q_row_stride + head * p.q_head_stride;
    const int64_t y = (m * p.num_heads + head) * 576;
    store_16_bit(p.y, y + i, row < 0 ? 0.0F : plain_dot(p.q, q, is_f16, p.w_uk, head * 512 + i, 128), is_f16);
    if (p.positions == nullptr || i >= 32) continue;
    const float* table = p.cos_sin + int64_t{row < 0 ? 0 : p.positions[row]} * 64;
    const float2 turned = row < 0
                              ? float2{0.0F, 0.0F}
                              : rotate(load_16_bit(p.q, q + 128 + 2 * i, is_f16),
                                       load_16_bit(p.q, q + 129 + 2 * i, is_f16), table[i], table[32 + i]);
    store_16_bit(p.y, y + 512 + 2 * i, turned.x, is_f16);
    store_16_bit(p.y, y + 513 + 2 * i, turned.y, is_f16);
  }
}

// Grid: x is the head, y the row; the 128 threads compute the head's outputs, which are one group of FP8
// rows.
__global__ void plain_expand_kernel(ExpandValueParams p) {
  __shared__ float group_max[kThreads / 32];
  pdl_wait();
  const int head = blockIdx.x;
  const int i = threadIdx.x;
  for (int64_t m = blockIdx.y; m < p.m; m += gridDim.y) {
    const bool is_f16 = p.kv_b.type == WeightType::kF16;
    const int64_t row = p.rows != nullptr ? p.rows[m] : m;
    if (row < 0) continue;
    const float value =
        plain_dot(p.o, (m * p.num_heads + head) * 512, is_f16, p.kv_b, head * 256 + 128 + i, 512);
    if (p.y != nullptr) {
      store_16_bit(p.y, row * p.y_stride + head * 128 + i, value, is_f16);
      continue;
    }
    float amax = fabsf(value);
    for (int lane = 16; lane > 0; lane /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, lane));
    if (i % 32 == 0) group_max[i / 32] = amax;
    __syncthreads();
    amax = fmaxf(fmaxf(group_max[0], group_max[1]), fmaxf(group_max[2], group_max[3]));
    __syncthreads();
    const float scale = quant_scale(amax, p.y_quantized.power_of_two);
    p.y_quantized.codes[row * p.y_quantized.stride + head * 128 + i] = to_e4m3(value / scale);
    if (i == 0) p.y_quantized.scales[head * p.y_quantized.scale_stride + row] = scale;
  }
}

unsigned rows_of_grid(int64_t m) {
  return static_cast<unsigned>(m < 32768 ? m : 32768);
}

}  // namespace

void linear(const DenseLinearParams& p, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>((p.w.n + kThreads - 1) / kThreads), rows_of_grid(p.m));
  launch_kernel<plain_linear_kernel>(launch, grid, dim3(kThreads), 0, p);
}

void absorb_query(const AbsorbQueryParams& p, const Launch& launch) {
  launch_kernel<plain_absorb_kernel>(launch, dim3(p.num_heads * 4, rows_of_grid(p.m)), dim3(kThreads), 0, p);
}

void expand_value(const ExpandValueParams& p, const Launch& launch) {
  launch_kernel<plain_expand_kernel>(launch, dim3(p.num_heads, rows_of_grid(p.m)), dim3(kThreads), 0, p);
}

}  // namespace hadal::cuda::reference
