// Implements the plain kernel of grouped_linear, with one output element per thread, for any shape and
// alignment.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/experts/variants.h"
#include "kernels/cuda/gemm/plain_dot.cuh"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 128;

// Grid: x is the group of 128 outputs, y the sorted row; each thread looks up its row's expert.
__global__ void plain_grouped_kernel(GroupedLinearParams p) {
  pdl_wait();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= p.w.n) return;
  for (int64_t row = blockIdx.y; row < p.num_rows; row += gridDim.y) {
    int expert = 0;
    while (expert < p.num_experts && p.expert_offsets[expert + 1] <= row) ++expert;
    if (expert == p.num_experts) return;  // rows after the last expert's belong to no expert
    MatrixWeight w = p.w;
    w.data = static_cast<const char*>(w.data) + expert * p.expert_stride * weight_element_bytes(w.type);
    if (w.scales != nullptr) w.scales += expert * p.expert_scale_stride;
    const int64_t source = p.token_of != nullptr ? p.token_of[row] : row;
    const float sum = has_scales(w.type)
                          ? plain_dot_w8a8(p.x_quantized, source, w, n)
                          : plain_dot(p.x, source * p.x_stride, w.type == WeightType::kF16, w, n, w.k);
    store_16_bit(p.y, row * w.n + n, sum, w.type == WeightType::kF16);
  }
}

}  // namespace

void grouped_linear(const GroupedLinearParams& p, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>((p.w.n + kThreads - 1) / kThreads),
                  static_cast<unsigned>(p.num_rows < 32768 ? p.num_rows : 32768));
  launch_kernel<plain_grouped_kernel>(launch, grid, dim3(kThreads), 0, p);
}

}  // namespace hadal::cuda::reference
