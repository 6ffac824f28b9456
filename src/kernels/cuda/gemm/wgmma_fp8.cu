#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/gemm/variants.h"
#include "kernels/cuda/gemm/wgmma_gemm.cuh"

namespace hadal::cuda {
namespace {

using Wide = WgmmaGemmConfig<fp8_e4m3, 2, 128, 4, 2>;  // tiles of 256 rows
using Low = WgmmaGemmConfig<fp8_e4m3, 1, 128, 6, 2>;   // tiles of 128 rows

bool aligned_16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

bool wgmma_fp8_linear_takes(const LinearParams& p) {
  const int64_t padded_k = round_up(p.w.k, kQuantGroup);
  return p.w.type == WeightType::kFp8Block && p.x_fp8 && p.y != nullptr && p.y_f32 == nullptr && p.m >= 1 &&
         p.w.n >= 8 && p.w.n % 8 == 0 && p.y_stride % 8 == 0 && p.w.row_stride % 16 == 0 &&
         p.w.row_stride >= padded_k && p.x_fp8.stride % 16 == 0 && p.x_fp8.stride >= padded_k &&
         p.x_fp8.scale_stride % 4 == 0 && aligned_16(p.y) && aligned_16(p.w.data) &&
         aligned_16(p.x_fp8.codes) && aligned_16(p.x_fp8.scales);
}

void wgmma_fp8_linear(const LinearParams& p, const Launch& launch) {
  HADAL_CHECK(wgmma_fp8_linear_takes(p), "m {}, n {}, k {}, y stride {}", p.m, p.w.n, p.w.k, p.y_stride);
  WgmmaGemmOperands<fp8_e4m3> operands;
  operands.x = p.x_fp8.codes;
  operands.x_stride = p.x_fp8.stride;
  operands.x_scales = p.x_fp8.scales;
  operands.x_scale_stride = p.x_fp8.scale_stride;
  operands.w = static_cast<const fp8_e4m3*>(p.w.data);
  operands.w_row_stride = p.w.row_stride;
  operands.expert_stride = p.w.row_stride * p.w.n;
  operands.k = round_up(p.w.k, kQuantGroup);
  WgmmaGemmParams params;
  params.y = p.y;
  params.y_stride = p.y_stride;
  params.rows = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  if (p.m > 128)
    launch_wgmma_gemm<Wide>(operands, params, launch);
  else
    launch_wgmma_gemm<Low>(operands, params, launch);
}

}  // namespace hadal::cuda
